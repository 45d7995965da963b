"""Long work of a request: it is done in turns of the loop, and its end waited for.

Called by what ends or moves very many things (`away`, `requeueing`). Others are heard in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from hubbub.web.publish import Inside

SECONDS: Final = 2.0  # of one request: who asks waits for ten, and is told where it goes on


async def done_in_turns(hub: Inside, work: Iterator[None]) -> None:
    """Do it piece by piece; what comes of it is the work's to say. What breaks it is raised here:
    what was done before stays done, and who asked is not told that all is well.
    """
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def pieces() -> Iterator[None]:
        try:
            yield from work
            if not done.done():
                done.set_result(None)
        except Exception as error:
            if done.done():  # nobody waits for it any more
                raise
            done.set_exception(error)
        finally:
            done.cancel()  # if it is not done: the hub stops

    hub.broker.in_turns(pieces())
    hub.schedule()
    await done
