"""NATS JetStream as what holds the copies: one stream a node, of as many servers as are there.

    GROUP.log.NAME    the subject of the stream hubbub_GROUP_NAME

A connection of its own: what is copied must not wait behind what is live, nor the other way. The
client of `nats-py` connects, speaks TLS, logs in and comes back by itself; what is copied goes past
its tasks (`shortcut`), which took half the time of one copy. asyncio is here.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hubbub.cluster.connecting import CONNECT_SECONDS, Entry
from hubbub.cluster.copies import FENCE, FOR_GOOD, Found, Piece, heard
from hubbub.cluster.nats import PING_SECONDS
from hubbub.cluster.refusals import Denied
from hubbub.config.cluster import Cluster as Settings
from hubbub.core.limits import CLUSTER_COPY_HEADS, CLUSTER_COPY_PIECE, KIB

if TYPE_CHECKING:
    from nats.aio.client import Client

    from hubbub.cluster.shortcut import Shortcut

HEADER: Final = "Hubbub-Copy"
AFTER: Final = "Nats-Expected-Last-Sequence"
OLDEST: Final = (2, 10, 23)  # before it, a killed process could lose what was acknowledged
MESSAGE_BYTES: Final = CLUSTER_COPY_PIECE + KIB  # that a server must take, with its headers
ASK_SECONDS: Final = 2.0
MAKE_SECONDS: Final = 10.0  # a stream with three copies takes half a second; a busy cluster more
PENDING_BYTES: Final = 16 * 1024 * 1024  # of nats-py: more than is ever in flight
READ_SECONDS: Final = 10.0
FEW: Final = 8  # messages behind the last one known, which are asked for one by one
UNABLE_SECONDS: Final = 10.0  # from one look to the next whether there is a JetStream by now
DENIED_ASKS: Final = 5  # questions without an answer, until a new inbox is tried where none may be
WITHOUT: Final = (10039, 10076)  # JetStream is not on, for the account or at all
NOT_THERE: Final = (10037, 10059)  # message, stream

log = logging.getLogger("hubbub.cluster")


class Refused(Exception):
    """JetStream said no, with a number of its own."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Listener(NamedTuple):
    """What of the answers goes where."""

    stored: Callable[[int, int, int], None]
    refused: Callable[[int, int], None]
    found: Callable[[Found, int], None]
    up: Callable[[], None]
    down: Callable[[], None]
    begins: Callable[[int, int], None]


class JetStream:
    """`unable`: why there can be no copies, "" if there can or nobody could be asked yet;
    `silent`: why JetStream could not be asked, "" once it was. `replicas`: how many servers have
    the stream.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = stream_of(settings.group, settings.name)
        self.subject = f"{settings.group}.log.{settings.name}"
        self.unable = ""
        self.silent = "not asked yet"
        self.denied = Denied(settings, time.monotonic)
        self._entry = Entry(settings, f"hubbub copies {settings.name}", self._quiet)
        self.replicas = 0
        self.up = False
        self._client: Client | None = None
        self._shortcut: Shortcut | None = None
        self._inbox = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._preparing: asyncio.Task[None] | None = None
        self._listener: Listener | None = None
        self._looking = False
        self._next: tuple[int, int] | None = None  # a look that follows the one on its way

    def open(self, listener: Listener) -> None:
        self._listener = listener
        self._run(self._entry.stay(self._attempt, self._went_down))

    def _run(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _attempt(self, client: Client) -> bool:
        from hubbub.cluster.shortcut import Shortcut

        shortcut = Shortcut(self._answered)
        self._client, self._shortcut = client, shortcut
        await self._entry.connect(
            client, self._went_down, self._came_up, shortcut, pending_size=PENDING_BYTES,
            ping_interval=PING_SECONDS,
        )  # fmt: skip
        self._inbox = client.new_inbox()
        shortcut.subjects = (f"{self._inbox}.".encode(),)
        await client.subscribe(f"{self._inbox}.*", cb=_unheard)
        await self._came_up()
        return True

    async def _quiet(self, error: Exception) -> None:
        """The live connection says why there is none."""
        log.debug("copies: %s", error or type(error).__name__)
        if line := self.denied.hears(str(error)):
            log.warning("copies: %s", line)

    async def _went_down(self) -> None:
        self.up = False
        if self._shortcut is not None:
            self._shortcut.ready = False
        if self._listener is not None:
            self._listener.down()

    async def _came_up(self) -> None:
        if self._preparing is not None:  # of the connection before, or it waits for a JetStream
            self._preparing.cancel()
        self._preparing = self._run(self._prepare())

    async def _prepare(self) -> None:
        """Whether there can be copies; then a stream, and the news. Where there is no JetStream, or
        none again, servers do not say when there is.
        """
        client, listener = self._client, self._listener
        assert client is not None and listener is not None
        asked, told = 0, ""
        while not client.is_closed and client.is_connected:
            try:
                self.unable = await why_not(client)
                if not self.unable:
                    await self._make(client)
                self.up = not self.unable
                assert self._shortcut is not None
                self._shortcut.ready = self.up
                self.silent = ""
                if self.unable != told or self.up:
                    listener.up()
                if self.up:
                    return
                told = self.unable
                await asyncio.sleep(UNABLE_SECONDS)
            except Exception as error:  # no leader yet: asked again
                log.debug("copies: %s", error or type(error).__name__)
                self.silent = self.denied.trouble() or str(error) or type(error).__name__
                await asyncio.sleep(1.0)
                asked += 1
                if asked >= DENIED_ASKS and self.denied.unheard():
                    await client.force_reconnect()  # it may be granted by now
                    return

    async def _make(self, client: Client) -> None:
        """The stream, if it is not there yet; a cluster that grew has one more copy of it."""
        wanted = self._wanted(client)
        config: dict[str, Any] = {
            "name": self.name, "subjects": [self.subject], "retention": "limits",
            "storage": "file", "discard": "new", "num_replicas": wanted, "max_consumers": -1,
            "max_msgs": -1, "max_bytes": -1, "max_age": 0, "deny_delete": True,
            # Of a stream that is made anew no number may be one of the old one's, which journals
            # know: estates are called after them, and what is answered for is told by them.
            "first_seq": int(time.time() * 1000),
        }  # fmt: skip
        try:
            there = (await self._ask(f"STREAM.INFO.{self.name}", {}))["config"]
        except Refused as error:
            if error.code not in NOT_THERE:
                raise
            made = await self._ask(f"STREAM.CREATE.{self.name}", config, MAKE_SECONDS)
            there = made["config"]
            log.info("copies: made the stream %s on %d servers", self.name, wanted)
        if there["num_replicas"] < wanted:
            with contextlib.suppress(Refused):
                update = {**there, "num_replicas": wanted}
                there = (await self._ask(f"STREAM.UPDATE.{self.name}", update, MAKE_SECONDS))[
                    "config"
                ]
        self.replicas = int(there["num_replicas"])

    def _wanted(self, client: Client) -> int:
        if self.settings.copies != "auto":
            return int(self.settings.copies)
        return 3 if len(client.servers) >= 3 else 1

    def _there(self) -> Client:
        """nats-py keeps what is asked before it is let in, and does not come back from that."""
        if self._client is None or not self._client.is_connected:
            raise OSError("not connected to NATS")
        return self._client

    async def _ask(
        self, what: str, said: dict[str, Any], seconds: float = ASK_SECONDS
    ) -> dict[str, Any]:
        return await ask(self._there(), what, said, seconds)

    # Copies calls these

    def put(self, piece: Piece, after: int) -> None:
        if self.up and self._shortcut is not None:
            head = f"NATS/1.0\r\n{HEADER}: {piece.head()}\r\n{AFTER}: {after}\r\n\r\n"
            reply = f"{self._inbox}.{piece.life}-{piece.number}"
            sizes = f"{len(head)} {len(head) + len(piece.data)}"
            command = f"HPUB {self.subject} {reply} {sizes}\r\n{head}".encode()
            self._shortcut.put(b"%b%b\r\n" % (command, piece.data))

    def _answered(self, answers: list[tuple[bytes, bytes]]) -> None:
        assert self._listener is not None
        for subject, data in answers:
            try:
                life, number = map(int, subject[len(self._inbox) + 1 :].split(b"-"))
                at = self._stored_at(data)
            except (TypeError, ValueError):
                continue  # nobody's who was asked
            if not at:
                log.debug("copies: piece %d: %r", number, data[:200])
                self._listener.refused(life, number)
                continue
            self._listener.stored(life, number, at)

    def _stored_at(self, data: bytes) -> int:
        """The number in the stream, 0 if it was not taken."""
        said = json.loads(data) if data else {}
        if not isinstance(said, dict) or said.get("stream") != self.name or "error" in said:
            return 0
        return int(said.get("seq", 0))

    def look(self, behind: int, number: int) -> None:
        if self.up and not self._looking:
            self._looking = True
            self._run(self._look(behind, number))
        elif self.up:
            self._next = behind, number

    def _look_on(self) -> None:
        self._looking = False
        following, self._next = self._next, None
        if following is not None:
            self.look(*following)

    async def _look(self, behind: int, number: int) -> None:
        assert self._listener is not None and self._client is not None
        try:
            try:
                found = await self._behind(behind)
            except Refused as error:
                if error.code not in NOT_THERE:
                    raise
                log.error("copies: the stream %s was deleted on the servers", self.name)
                await self._make(self._client)
                found = await self._behind(behind)
        except Exception as error:  # nobody leads: Copies asks again
            log.debug("copies: %s", error or type(error).__name__)
            return
        finally:
            self._look_on()
        self._listener.found(found, number)

    def glance(self) -> None:
        if self.up:
            self._run(self._glance())

    async def _glance(self) -> None:
        assert self._listener is not None
        try:
            state = await self._state(self.name)
        except Exception as error:  # the next glance is another one
            log.debug("copies: %s", error or type(error).__name__)
            return
        self._listener.begins(int(state["first_seq"]), gaps_of(state))

    async def holders(self) -> list[str]:
        """The names of the servers that have the stream; of a server that is alone none."""
        found = (await self._ask(f"STREAM.INFO.{self.name}", {})).get("cluster") or {}
        others = [one["name"] for one in found.get("replicas") or ()]
        return [name for name in (found.get("leader", ""), *others) if name]

    def purge(self, before: int, node: str = "") -> None:
        """Of this node's stream, or of another one's."""
        self._run(self._purge(self.stream_of(node) if node else self.name, before))

    async def _purge(self, stream: str, before: int) -> None:
        try:
            await self._ask(f"STREAM.PURGE.{stream}", {"seq": before})
        except Exception as error:  # the next checkpoint takes it along
            log.info("copies: nothing was let go: %s", error or type(error).__name__)

    def stream_of(self, node: str) -> str:
        return stream_of(self.settings.group, node)

    # Reading a stream, the own or that of another node

    async def last(self, stream: str) -> Found:
        """The last piece in it, whatever others have put behind it. Refused if there is no such
        stream.
        """
        state = await self._state(stream)
        at, first, gaps = int(state["last_seq"]), int(state["first_seq"]), gaps_of(state)
        if not state["messages"]:
            return Found(at, None, 0, first)
        piece = (await self._get(stream, at))[1]
        if piece is not None:
            return Found(at, piece, 0, first, gaps=gaps)
        log.warning("copies: the last message of the stream %s is one that no node wrote", stream)
        node = stream.removeprefix(stream_of(self.settings.group, ""))
        heads = await self.read(node, at, heads=True, behind=max(0, at - CLUSTER_COPY_HEADS))
        heads = heads or await self.read(node, at, heads=True)
        if not heads:
            return Found(at, None, 0, first, gaps=gaps)
        place = heads[-1][0]
        return Found(at, (await self._get(stream, place))[1], at - place, first, gaps=gaps)

    async def _behind(self, behind: int) -> Found:
        """What is in this node's stream behind that message."""
        state = await self._state(self.name)
        at, first, gaps = int(state["last_seq"]), int(state["first_seq"]), gaps_of(state)
        if at <= behind:
            return Found(at, None, 0, first, gaps=gaps)
        if at - behind > FEW:
            heads = await self.read(self.settings.name, at, heads=True, behind=behind)
            news = [await self._with_author(*one) for one in heads]
        else:
            there = range(max(first, behind + 1), at + 1)
            found = dict([await self._get(self.name, one) for one in there])
            news = [(one, piece) for one, piece in found.items() if piece is not None]
        return Found(at, news[-1][1] if news else None, 0, first, tuple(news), gaps)

    async def _with_author(self, at: int, head: Piece) -> tuple[int, Piece]:
        """Whose a stop is stands in its data."""
        if head.kind != FENCE:
            return at, head
        return at, await self.message(self.settings.name, at) or head

    async def _state(self, stream: str) -> dict[str, Any]:
        """Where it begins and ends, and how much is in it."""
        state: dict[str, Any] = (await self._ask(f"STREAM.INFO.{stream}", {}))["state"]
        return state

    async def _get(self, stream: str, at: int) -> tuple[int, Piece | None]:
        """The message of that number, or the next one there is."""
        asked = {"seq": at, "next_by_subj": ">"}
        message = (await self._ask(f"STREAM.MSG.GET.{stream}", asked, READ_SECONDS))["message"]
        head = base64.b64decode(message.get("hdrs", "")).decode("latin-1")
        said = re.search(rf"^{HEADER}: *(.*?)\r$", head, re.MULTILINE)
        data = base64.b64decode(message.get("data", ""))
        return int(message["seq"]), heard(said[1], data) if said else None

    async def nodes(self) -> list[str]:
        """Whose logs are copied."""
        prefix = f"{self.settings.group}.log."
        answer = await self._ask("STREAM.NAMES", {"subject": f"{prefix}*"})
        begin = stream_of(self.settings.group, "")
        return [name[len(begin) :] for name in answer["streams"] or () if name.startswith(begin)]

    async def message(self, node: str, at: int) -> Piece | None:
        """One message of a node's stream; None if it is let go."""
        found, piece = await self._get(self.stream_of(node), at)
        return piece if found == at else None

    async def fence(
        self, node: str, after: int, life: int, author: str, for_good: bool = False
    ) -> int:
        """Put a stop behind the last message of a node's stream; its number, 0 if another one came
        first. `author`: the estate of this node; `for_good`: that one was removed.
        """
        client = self._there()
        piece = Piece(life, 1, FENCE, FOR_GOOD * for_good, False, author.encode())
        headers = {HEADER: piece.head(), AFTER: str(after)}
        subject = f"{self.settings.group}.log.{node}"
        answer = await client.request(subject, piece.data, timeout=READ_SECONDS, headers=headers)
        said = json.loads(answer.data)
        return 0 if "error" in said else int(said["seq"])

    async def read(
        self, node: str, upto: int, heads: bool = False, behind: int = 0
    ) -> list[tuple[int, Piece]]:
        """All pieces of a node's stream behind one message up to another, each with its number;
        `heads`: without their data.
        """
        from nats.js.api import ConsumerConfig, DeliverPolicy

        client = self._client
        assert client is not None
        info = await self._state(self.stream_of(node))
        if not info["messages"] or info["first_seq"] > upto:
            return []
        subject = f"{self.settings.group}.log.{node}"
        reader = await client.jetstream().subscribe(
            subject, stream=self.stream_of(node), ordered_consumer=True,
            config=ConsumerConfig(
                headers_only=heads, deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=behind + 1,
            ),
        )  # fmt: skip
        found: list[tuple[int, Piece]] = []
        try:
            while True:
                message = await reader.next_msg(READ_SECONDS)
                at = message.metadata.sequence.stream
                piece = heard((message.headers or {}).get(HEADER, ""), message.data)
                if at <= upto and piece is not None:
                    found.append((at, piece))
                if at >= upto:
                    return found
        finally:
            with contextlib.suppress(Exception):
                await reader.unsubscribe()

    async def close(self) -> None:
        client, self._client = self._client, None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CONNECT_SECONDS)
        self.up = False
        if client is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CONNECT_SECONDS):
                    await client.close()


async def ask(
    client: Client, what: str, said: dict[str, Any], seconds: float = ASK_SECONDS
) -> dict[str, Any]:
    data = json.dumps(said).encode() if said else b""
    answer = await client.request(f"$JS.API.{what}", data, timeout=seconds)
    found: dict[str, Any] = json.loads(answer.data)
    if "error" in found:
        wrong = found["error"]
        raise Refused(int(wrong.get("err_code", 0)), str(wrong.get("description", wrong)))
    return found


async def why_not(client: Client) -> str:
    """Why its servers give no copies, "" if they do."""
    from nats.errors import NoRespondersError

    version = version_of(str(client.connected_server_version))
    if version < OLDEST:
        said, wanted = (".".join(map(str, one)) for one in (version, OLDEST))
        return f"NATS {said} is too old for copies: {wanted} or later"
    if client.max_payload < MESSAGE_BYTES:  # it would end the connection each time, for ever
        said, wanted = f"{client.max_payload:,}", f"{MESSAGE_BYTES:,}"
        return f"the NATS servers take {said} bytes (max_payload), copies need {wanted}"
    try:
        await ask(client, "INFO", {})
    except NoRespondersError:
        return "the NATS servers have no JetStream"
    except Refused as error:
        if error.code in WITHOUT:
            return f"the NATS servers have no JetStream for this account ({error})"
        raise
    return ""


async def _unheard(message: object) -> None:
    """What is said to the inbox of the copies never comes so far."""


def gaps_of(state: dict[str, Any]) -> int:
    """How many messages are missing between a stream's first and its last one: it refuses that they
    are deleted, but one that somebody else made may not, and a server's disk may lose some.
    """
    there = int(state["messages"])
    return int(state["last_seq"]) - int(state["first_seq"]) + 1 - there if there else 0


def stream_of(group: str, node: str) -> str:
    return f"hubbub_{group}_{node}"


def version_of(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])
