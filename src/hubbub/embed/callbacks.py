"""The program's functions: how they are called, and how calls from other threads come in.

    broker -> HubSession -> Calls -> the program's functions       out of the hub
    another thread -> HandOver -> the hub's loop                   into the hub

A function of the program never runs inside the broker's own work: it is called later in the same
turn of the loop, one after the other, in order. What it raises is logged and harms nothing.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import inspect
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from hubbub.core.broker import Broker
from hubbub.core.client import take_more
from hubbub.core.limits import CALLBACKS, CALLS_WAITING, TURN_SECONDS
from hubbub.core.message import SPELLED, Message, Run
from hubbub.core.queue import Queue
from hubbub.core.session import Session, Subscription
from hubbub.core.topics import CLIENT
from hubbub.errors import HubbubError

T = TypeVar("T")

SELF: Final = "self"  # the name under which a client, and the hub, subscribes to its own number
TOO_SLOW: Final = "callbacks too slow"
RETRY_SECONDS: Final = 0.001  # a full queue is empty again after one turn of the loop

log = logging.getLogger("hubbub.program")

Function = Callable[..., Any]


def check_callable(*functions: object) -> None:
    """TypeError now, and not when the first message comes."""
    for function in functions:
        if function is not None and not callable(function):
            raise TypeError(f"expected a function or None, got {function!r}")


class Calls:
    """Calls plain and async functions soon, in order; of async ones many run at once. `freed` is
    called when one more may run.
    """

    def __init__(self) -> None:
        self.freed: Callable[[], None] = lambda: None
        self._waiting: deque[tuple[Function, tuple[Any, ...], Callable[[], None] | None]] = deque()
        self._running: set[asyncio.Future[Any]] = set()
        self._held: dict[Session, Callable[[], None]] = {}
        self._scheduled = False
        self._ending = False

    def soon(
        self, function: Function, *arguments: Any, then: Callable[[], None] | None = None
    ) -> None:
        """Call the function later in this turn; `then` only if it does not fail."""
        self._waiting.append((function, arguments, then))
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def busy(self) -> bool:
        """Whether so many async functions run that messages must be dropped."""
        return len(self._running) >= CALLBACKS

    def _run(self) -> None:
        """What waits now; what that brings is for the next turn, so that others get theirs. So is
        what is left where functions are slow, unless so much waits that all others must, too.
        """
        self._scheduled = False
        until = time.monotonic() + TURN_SECONDS
        for _ in range(len(self._waiting)):
            self._call(*self._waiting.popleft())
            late = time.monotonic() > until and not self._ending
            if late and len(self._waiting) <= CALLS_WAITING:
                break
        if self._waiting:
            self._schedule()
        if self._held and len(self._waiting) <= CALLBACKS:
            held, self._held = self._held, {}
            for go_on in held.values():
                go_on()

    def hold_back(self, sender: Session) -> None:
        """It has published: where more waits than may it is heard no more until that was called. A
        program and other nodes cannot be held.
        """
        if len(self._waiting) > CALLBACKS and sender.opening is not None:
            go_on = sender.opening.carrier.hold()  # also if it waits: others may have let it go on
            if go_on is not None:
                self._held[sender] = go_on

    def _call(
        self, function: Function, arguments: tuple[Any, ...], then: Callable[[], None] | None
    ) -> None:
        try:
            result = function(*arguments)
        except (Exception, asyncio.CancelledError):  # it asked what was cancelled
            log.exception("%s failed", _named(function))
            return
        if inspect.isawaitable(result):
            self._go_on(function, result, then)
        elif then is not None:
            then()

    def _go_on(
        self, function: Function, result: Awaitable[Any], then: Callable[[], None] | None
    ) -> None:
        def done(task: asyncio.Future[Any]) -> None:
            if task.cancelled():
                return
            error = task.exception()
            if error is not None:
                log.error("%s failed", _named(function), exc_info=error)
            elif then is not None:
                then()

        self.run(result, done)

    def run(self, work: Awaitable[Any], done: Callable[[asyncio.Future[Any]], None]) -> None:
        """Run it until it ends, or the hub."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(done)
        task.add_done_callback(lambda _: self.freed())

    def hurry(self) -> None:
        """The hub is about to end: what waits is called while the journal still hears of it, and
        what comes until then at once. Else the next start would give it to the program again.
        """
        self._ending = True
        self._run()

    def cancel(self) -> None:
        """The hub has ended: what waits is called now, what still runs is cancelled."""
        self.freed = lambda: None
        self._ending = False
        for _ in range(len(self._waiting)):
            self._call(*self._waiting.popleft())
        for task in list(self._running):
            task.cancel()


def _named(function: Function) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', repr(function))}"


class HubSession(Session):
    """The hub's own session: its subscriptions are functions of the program.

    `call` gets the name or filter of the subscription, the message and what to do when that has
    succeeded; `tell` gets an observed name and its new count. `calls` says whether more may run.
    """

    def __init__(
        self,
        broker: Broker,
        number: int,
        call: Callable[[str, Message, Callable[[], None] | None], None],
        tell: Callable[[str, int], None],
        calls: Calls,
    ) -> None:
        super().__init__("", "hub", broker.open)
        self.traffic = broker.metrics.of("")
        self.broker = broker
        self.number = number
        self.direct = Subscription(self, SELF, 0, (SPELLED, SPELLED, SPELLED), literal=True)
        self._call = call
        self._tell = tell
        self._busy = calls.busy
        self._hold_back = calls.hold_back
        calls.freed = self.resume

    def deliver(self, run: Run, subscription: Subscription) -> None:
        wanted = subscription.all if isinstance(subscription, _Several) else [subscription]
        for message in run.messages():
            for one in wanted:
                self._call(one.filter, message, None)
        self._hold_back(run.sender)
        self.traffic.delivered += run.count

    def merge(self, matching: list[Subscription]) -> Subscription:
        """Every filter has functions of its own, so all of them are called."""
        return _Several(self, matching) if len(matching) > 1 else matching[0]

    def offer(self, message: Message, subscription: Subscription, retained: bool) -> None:
        """One message; if it is from a queue, the function acknowledges it by returning.

        A request is acknowledged by the answer that is published to its asker or reply id.
        """
        lease = self.leases.get(message.seq)
        then = None
        if lease is not None and not message.reply_to:
            then = functools.partial(self._done, *lease)
        elif lease is not None and message.reply_to.startswith(CLIENT):
            self.owes(message)
        self._call(subscription.filter, message, then)

    def ready(self) -> bool:
        """What waits in a queue is not dropped where no more may run: it stays there."""
        return len(self.leases) < CALLBACKS and not self._busy()

    def resume(self) -> None:
        """One more may run, or one less is leased: take what was left in queues."""
        if self.turned_away:
            take_more(self.broker, self)

    def relieved(self) -> None:
        self.resume()

    def _done(self, queue: Queue, number: int) -> None:
        self.broker.queues.finish(queue, number, self)

    def changed(self, name: str, count: int) -> None:
        self._tell(name, count)


class _Several(Subscription):
    """All subscriptions of the hub that match one name."""

    def __init__(self, session: Session, matching: list[Subscription]) -> None:
        super().__init__(session, CLIENT, 0, matching[0].encodings)
        self.all = matching


class Flushed:
    """The far end of a link: `done` as soon as something held leaves, which is when it is safe.

    `position`: the last row that it waits for.
    """

    def __init__(self, position: int) -> None:
        self.position = position
        self.done: concurrent.futures.Future[None] = concurrent.futures.Future()

    def write(self, data: bytes) -> None:
        if not self.done.done():  # nobody waits any more
            self.done.set_result(None)

    def end(self, durable: int) -> None:
        """The hub ended; its last commit may have come so far."""
        if durable >= self.position:
            self.done.set_result(None)
        else:
            self.done.set_exception(HubbubError("the hub ended before it was on the disk"))

    def writelines(self, data: list[bytes]) -> None:
        self.write(b"".join(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        """Nobody closes it."""

    abort = close


class HandOver:
    """Calls from other threads, at most `size` waiting, made by the hub's loop in order."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._calls: queue.Queue[Callable[[], None]] = queue.Queue(size)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = threading.Lock()  # nothing may be put in once nobody takes it out

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def close(self) -> None:
        """The hub ends; what waits is still made."""
        with self._ending:
            self._loop = None
        self._make()

    def used(self) -> int:
        return self._calls.qsize()

    def put(self, call: Callable[[], object]) -> bool:
        """Have it called; False if too many wait already."""
        return self._put(lambda: _logged(call))

    def ask(self, call: Callable[[], T]) -> T:
        """Have it called, as soon as there is room, and wait for what it returns or raises."""
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()

        def answered() -> None:
            try:
                answer.set_result(call())
            except BaseException as error:
                answer.set_exception(error)

        while not self._put(answered):
            time.sleep(RETRY_SECONDS)
        return answer.result()

    def _put(self, call: Callable[[], None]) -> bool:
        with self._ending:
            if self._loop is None:
                raise HubbubError("the hub does not run: use it inside `async with` or `with`")
            try:
                self._calls.put_nowait(call)
            except queue.Full:
                return False
            self._loop.call_soon_threadsafe(self._make)
            return True

    def _make(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._calls.get_nowait()()


def _logged(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:
        log.exception("a call from another thread failed")


class LogTo(logging.Handler):
    """Hands warnings and errors to a function of the program, as text."""

    def __init__(self, function: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._function = function

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._function(self.format(record))
        except Exception:
            self.handleError(record)  # says so on stderr; who logged goes on
