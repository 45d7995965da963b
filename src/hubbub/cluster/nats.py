"""NATS as the engine of a cluster: core subjects only, so any nats-server since 2.2 will do.

    GROUP.all         beats, to every node
    GROUP.to.NAME     everything for one node

The client of `nats-py` connects, speaks TLS, logs in and comes back by itself; frames go past its
tasks (`shortcut`) as long as the socket takes them, and over WebSockets through it. What is sent
while there is no connection is let go: the other side misses it and asks. asyncio is here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from hubbub.cluster.alone import Alone
from hubbub.cluster.connecting import (
    CONNECT_SECONDS,
    Entry,
    check_urls,
    context_of,
    server_of,
)
from hubbub.cluster.engine import Heard
from hubbub.cluster.refusals import MOST, Denied, Refusal
from hubbub.config.cluster import Cluster as Settings
from hubbub.core.limits import CLUSTER_FRAME_BYTES, KIB, LINK_CHOKED
from hubbub.errors import SettingError

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from hubbub.cluster.shortcut import Shortcut

PING_SECONDS: Final = 2  # a server that hangs is noticed after two of these
DENIED_LOOKS: Final = 10  # pings from one try to the next of what may not be heard
HANGS_SECONDS: Final = 4  # without an answer, which waits behind all that was said before
FOR_EVER: Final = 10**9  # seconds: that a ping is not answered is said by the connection
SETTLE_SECONDS: Final = 0.5  # in which a node of the same name says that it is there
FULL_SECONDS: Final = 0.01  # from one look to the next at a socket that takes no more
QUEUED_BYTES: Final = 4 * LINK_CHOKED  # messages stop at one; what changes here is small
HEAD_BYTES: Final = KIB  # of a frame, beside its records: more than it has
RECEIVED_BYTES: Final = 64 * 1024 * 1024  # that wait for the loop; nats-py's own bound drops less

log = logging.getLogger("hubbub.cluster")


class Nats:
    """It says nothing before it is known that no other hub of this name lives (`alone`)."""

    complete = False  # anybody may be there, and hear late

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = settings.name
        self.up = False
        self.alone = Alone(settings)
        self.denied = Denied(settings, time.monotonic)
        self._entry = Entry(settings, f"hubbub {settings.name}", self._complain)
        self._trouble = "not connected to NATS yet"
        self._ending = False
        self._client: Client | None = None
        self._shortcut: Shortcut | None = None
        self._queue: deque[tuple[str, bytes]] = deque()
        self._bytes = 0
        self._full = False
        self._said: set[str] = set()  # in this outage
        self._woken = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._watching: asyncio.Task[None] | None = None
        self._pings: set[asyncio.Task[None]] = set()
        self._heard: Heard = lambda frame: None
        self._hears: dict[str, Subscription] = {}
        self._changed: Callable[[], None] = lambda: None
        check_urls(settings)  # what is wrong with its settings and files is said at the start
        context_of(settings)

    async def open(self, heard: Heard, changed: Callable[[], None]) -> None:
        try:
            import nats  # noqa: F401
        except ModuleNotFoundError:
            raise SettingError(
                "cluster.url needs nats-py: run `pip install '.[cluster]'` where Hubbub's source is"
            ) from None
        self._heard, self._changed = heard, changed
        connected = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._entry.stay(partial(self._attempt, connected), self._over)),
            asyncio.create_task(self._send()),
        ]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_SECONDS):
                await connected.wait()

    async def _attempt(self, connected: asyncio.Event, client: Client) -> bool:
        from hubbub.cluster.shortcut import Shortcut

        if not await self.alone.ask(self._complain):
            connected.set()
            return False
        self._client, group = client, self.settings.group
        subjects = f"{group}.all", f"{group}.to.{self.name}"
        self._shortcut = shortcut = Shortcut(self._came)
        shortcut.subjects = tuple(one.encode() for one in subjects)
        await self._entry.connect(
            client, self._went_down, self._came_up, shortcut, no_echo=True,
            ping_interval=PING_SECONDS, pending_size=LINK_CHOKED,
        )  # fmt: skip
        self._hears = {}
        for subject in subjects:
            await self._subscribe(client, subject)
        await client.flush()
        await self._came_up()
        self._watching = asyncio.create_task(self._watch(client))
        connected.set()
        return True

    async def _over(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        if self.up:
            await self._went_down()

    async def _subscribe(self, client: Client, subject: str) -> None:
        async def take(message: Msg) -> None:
            self._came([(b"", message.data)])

        if subject in self._hears:
            await self._hears.pop(subject).unsubscribe()
        self._hears[subject] = await client.subscribe(
            subject, cb=take, pending_msgs_limit=-1, pending_bytes_limit=RECEIVED_BYTES
        )

    def _came(self, said: list[tuple[bytes, bytes]]) -> None:
        for _, frame in said:
            if not frame:
                continue  # the doctor tries whether it may say anything
            try:
                self._heard(frame)
            except Exception:  # else the loop ends the connection
                log.exception("a frame of another node broke the hub's own code")

    async def _complain(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        denied = self.denied.hears(text)
        if denied is not None:
            if denied:
                log.warning("%s", denied)
        elif self._ending:
            log.debug("NATS: %s", text)
        elif self.up:
            log.warning("NATS: %s", text)
        elif isinstance(error, Refusal):
            self._down(text)
        else:
            self._down(f"cannot connect to NATS: {text}")

    async def _went_down(self) -> None:
        for ping in self._pings:  # nobody answers them any more, and the next one has its own
            ping.cancel()
        why = self._entry.why()
        if self._ending:
            self.up = False
        elif self.up or why is not None:
            self._down(str(why or "the connection to NATS is lost"))

    @property
    def most(self) -> int:
        """A server may be told to take less than the MiB that it takes as it comes."""
        if self._client is None:
            return CLUSTER_FRAME_BYTES
        return min(CLUSTER_FRAME_BYTES, max(self._client.max_payload - HEAD_BYTES, HEAD_BYTES))

    @property
    def trouble(self) -> str:
        """Why nothing leaves, or what the account lacks."""
        return self._trouble or self.denied.trouble()

    def _down(self, trouble: str) -> None:
        if trouble not in self._said:
            if len(self._said) >= MOST:  # a server may say another thing each time
                self._said.clear()
            self._said.add(trouble)
            log.warning("%s; trying again, and serving this node's own clients", trouble)
        self.up, self._trouble = False, trouble
        self._straight(False)
        self._queue.clear()
        self._bytes = 0
        self._changed()

    async def _came_up(self) -> None:
        assert self._client is not None
        log.info("connected to NATS at %s", server_of(self._client))
        self.up, self._trouble = True, ""
        self._straight(True)
        self._said.clear()
        self._changed()

    def send(self, node: str, frames: list[bytes]) -> bool:
        if not self.up or self._bytes > QUEUED_BYTES:
            return False
        subject = f"{self.settings.group}.to.{node}" if node else f"{self.settings.group}.all"
        for frame in frames:
            if self._queue or not self._put(subject, frame):
                self._queue.append((subject, frame))
                self._bytes += len(frame)
        if self._queue:
            self._full = self._full or self._bytes > LINK_CHOKED
            self._woken.set()
        return True

    def _straight(self, goes: bool) -> None:
        if self._shortcut is not None:
            self._shortcut.ready = goes

    def _put(self, subject: str, frame: bytes) -> bool:
        """Past all that waits for nothing; nats-py says what it does not take."""
        shortcut, client = self._shortcut, self._client
        if shortcut is None or client is None or client.pending_data_size:
            return False
        if not shortcut.takes() or len(frame) > client.max_payload:
            return False
        shortcut.put(b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(frame), frame))
        return True

    async def _send(self) -> None:
        """What was taken, in order. nats-py keeps any amount while the socket is full."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            while self._queue and (client := self._client) is not None:
                first = subject, frame = self._queue[0]
                while self.up and client.pending_data_size > LINK_CHOKED:
                    await asyncio.sleep(FULL_SECONDS)
                try:
                    await client.publish(subject, frame)
                except Exception as error:  # the connection is gone, or the server's bound is small
                    log.warning("NATS did not take %d bytes: %s", len(frame), error)
                if self._queue and self._queue[0] is first:  # else all that waits was let go of
                    self._queue.popleft()
                    self._bytes -= len(frame)
                if self._full and self.waiting() < LINK_CHOKED // 2:
                    self._full = False
                    self._changed()

    async def _watch(self, client: Client) -> None:
        """Whether the server answers: nats-py ends a connection that is stuck only when it can
        send what waits, and one that was stuck may never end. Where there is no connection it says
        that nothing waits for an answer.
        """
        looks = 0
        while self._client is client and not client.is_closed:
            await asyncio.sleep(PING_SECONDS)
            looks += 1
            if looks % DENIED_LOOKS == 0 and client.is_connected:
                with contextlib.suppress(Exception):  # the connection is gone
                    for subject in self.denied.unheard():  # it may be granted by now
                        await self._subscribe(client, subject)
            if not client.is_connected:
                if self.up:  # nats-py says so only when what was stuck has left
                    self._down("NATS does not answer")
                continue
            ping = self._ping(client)
            await asyncio.wait((ping,), timeout=HANGS_SECONDS)
            if ping.cancelled() or not client.is_connected:  # it is another connection, or none
                continue
            if not _is_answered(ping):
                if self.up:
                    self._down("NATS does not answer")
            elif not self.up:
                await self._came_up()

    def _ping(self, client: Client) -> asyncio.Task[None]:
        """Ask the server; who waits gives up by itself. nats-py stops reading where an answer comes
        to a question that was given up, and takes six seconds more to see that it hears nothing.
        """
        ping = asyncio.create_task(_answer(client))
        self._pings.add(ping)
        ping.add_done_callback(self._pings.discard)
        return ping

    def mark(self, passed: Callable[[], None]) -> None:
        """A ping: its answer comes behind all that the server had for this node."""
        if self._client is not None and self.up:

            def answered(ping: asyncio.Task[None]) -> None:
                if _is_answered(ping):
                    self._handed_over(passed)

            self._ping(self._client).add_done_callback(answered)

    def _handed_over(self, passed: Callable[[], None]) -> None:
        """What came before may still wait for tasks of nats-py, where it has come that way."""
        if any(one.pending_msgs for one in self._hears.values()):
            asyncio.get_running_loop().call_soon(self._handed_over, passed)
        else:
            passed()

    async def settle(self, met: Callable[[str], bool]) -> None:
        if self.up:
            await asyncio.sleep(SETTLE_SECONDS)

    def waiting(self, node: str = "") -> int:
        pending = self._client.pending_data_size if self._client is not None else 0
        return self._bytes + pending

    async def close(self) -> None:
        client, self._ending = self._client, True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_SECONDS):
                while self.up and self._queue:
                    await asyncio.sleep(FULL_SECONDS)
        tasks = [task for task in (*self._tasks, self._watching) if task is not None]
        for task in (*tasks, *self._pings):
            task.cancel()
        if tasks:  # not for ever: what nats-py waits for may swallow that it is cancelled
            await asyncio.wait(tasks, timeout=CONNECT_SECONDS)
        self.up = False
        if client is not None:
            for step in (client.flush, client.close):
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(CONNECT_SECONDS):
                        await step()
        self._client = None


async def _answer(client: Client) -> None:
    """nats-py asks nothing where it has stopped to read, and says that all is well."""
    answers = client._pongs_received
    await client.flush(FOR_EVER)
    if client._pongs_received == answers:
        raise ConnectionError("nothing was read")


def _is_answered(ping: asyncio.Task[None]) -> bool:
    return ping.done() and not ping.cancelled() and ping.exception() is None
