"""Whether NATS would let a node in, and have it do what nodes do: tried without being one.

    connect ─→ subscribe as a node does ─→ an empty message to each subject that an account must
    grant ─→ what the server refused ─→ with copies: whether JetStream is there

`hubbub doctor` asks, also beside a hub that runs. What is published is for a node and a stream that
can be nobody's, or is empty, and nodes pass over that; nothing is made, changed or taken away.
asyncio is here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hubbub.cluster.connecting import CONNECT_SECONDS, close, enter, server_of, where_is
from hubbub.cluster.jetstream import why_not
from hubbub.cluster.refusals import LIVE, PUBLISH, TO_DO, Denied, refusal
from hubbub.config.cluster import Cluster as Settings

if TYPE_CHECKING:
    from nats.aio.client import Client

# No node is called so, nor a stream.
NOBODY: Final = "$doctor"
# A purge of all is what an empty one says; this one takes nothing also where there is a stream.
PURGES: Final = ".STREAM.PURGE."
NOTHING: Final = b'{"seq":1}'


async def knock(settings: Settings, url: str) -> tuple[str, str]:
    """Who is at this URL and lets this node in, "" if nobody does, and what is wrong with that."""
    from nats.aio.client import Client

    one, client, wrong = replace(settings, url=(url,)), Client(), [""]
    denied = Denied(settings, asyncio.get_running_loop().time)

    async def complain(error: Exception) -> None:
        if not isinstance(error, TimeoutError):
            wrong[0] = str(error) or type(error).__name__
            denied.hears(wrong[0])

    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await enter(client, one, "hubbub doctor", error_cb=complain, allow_reconnect=False)
        async with asyncio.timeout(2 * CONNECT_SECONDS):
            await _try_all(client, settings)
            found = denied.trouble()
            if not found and settings.copies != "0":
                found = await _copies(client)
            return server_of(client), found
    except TimeoutError:
        return "", wrong[0] or f"no nats-server says anything in {CONNECT_SECONDS} s"
    except Exception as error:  # nats-py has many kinds, and passes those of sockets on
        return "", str(refusal(one, where_is(client), error))
    finally:
        await close(client)


async def _try_all(client: Client, settings: Settings) -> None:
    copied = settings.copies != "0"
    inbox = client.new_inbox()
    wanted = [f"{settings.group}.all", f"{settings.group}.to.{settings.name or '?'}"]
    for subject in (*wanted, inbox) if copied else wanted:
        await client.subscribe(subject)
    for grant in PUBLISH if copied else PUBLISH[:LIVE]:
        subject = grant.format(group=settings.group).replace("*", NOBODY).replace(">", NOBODY)
        data = NOTHING if PURGES in subject else b""
        await client.publish(subject, data, reply=inbox if copied else "")
    await client.flush()  # its ping may leave before them
    await client.flush()


async def _copies(client: Client) -> str:
    try:
        wrong = await why_not(client)
    except Exception as error:  # nobody leads
        wrong = f"JetStream does not say whether it is there: {str(error) or type(error).__name__}"
    to_do = f"{TO_DO}have such servers, with JetStream (-js); or set cluster.copies = \"0\""
    return f"no copies: {wrong}. {to_do}" if wrong else ""
