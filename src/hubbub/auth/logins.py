"""Passwords that are looked at: slow work, in a few threads, in an order that is fair.

    asked ──> wrong too often from there? ── refused at once
      │           the same user and password are on their way? ── the same answer
      └──> addresses take turns, and at each its users ──> a thread ──> the answer

So a flood waits for itself: whoever comes from elsewhere is next but for one work of each other
address. When all wait that may, the last of the longest queue is refused. Who left meanwhile is
passed over. Made by `Gates`, used on the loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from hubbub.auth.guesses import Guesses
from hubbub.auth.passwords import Account, Passwords
from hubbub.core.gate import Credentials
from hubbub.core.rights import BAD_CREDENTIALS, TOO_BUSY
from hubbub.wire.source import source_of

THREADS: Final = 2  # logins at one time: the loop and the journal want processors too
WAITING: Final = 1_000  # logins that wait for a thread: half a minute of work

Answered = Callable[[str], None]
"""Told "", or why not."""


class Work:
    """A user and a secret to be looked at, and who wants to know."""

    __slots__ = ("passwords", "address", "user", "secret", "account", "asking")

    def __init__(self, passwords: Passwords, address: str, user: str, secret: bytes) -> None:
        self.passwords = passwords
        self.address = address
        self.user = user
        self.secret = secret
        self.account = passwords.users.get(user)  # what it is looked at with
        self.asking: list[tuple[Credentials, Answered]] = []

    @property
    def key(self) -> tuple[Passwords, str, str, bytes, Account | None]:
        return self.passwords, self.address, self.user, self.secret, self.account

    def wanted(self) -> bool:
        """Whether somebody is still there to hear it."""
        return any(one.opening is None or not one.opening.gone for one, _ in self.asking)


class Logins:
    """The queue of one hub. `guesses` are the wrong ones."""

    def __init__(self, guesses: Guesses) -> None:
        self.guesses = guesses
        self._threads = ThreadPoolExecutor(THREADS, "hubbub-login")
        self._known: dict[tuple[Passwords, str, str, bytes, Account | None], Work] = {}
        self._queues: OrderedDict[str, OrderedDict[str, deque[Work]]] = OrderedDict()
        self._waiting = 0
        self._running = 0

    def verify(self, passwords: Passwords, asks: Credentials, answered: Answered) -> None:
        """Call `answered` on the loop once a thread has looked, or at once if none will."""
        address = source_of(asks.address)
        if self.guesses.blocked(address, asks.user):
            answered(TOO_BUSY)
            return
        work = Work(passwords, address, asks.user, asks.secret)
        known = self._known.get(work.key)
        if known is not None:
            known.asking.append((asks, answered))
            return
        work.asking.append((asks, answered))
        self._known[work.key] = work
        self._queues.setdefault(address, OrderedDict()).setdefault(asks.user, deque()).append(work)
        self._waiting += 1
        if self._waiting > WAITING:
            self._end(self._taken(*self._longest(), -1), TOO_BUSY)
        self._go_on()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _longest(self) -> tuple[str, str]:
        """The address for which most works wait, and its user for whom most do."""
        address, users = max(
            self._queues.items(), key=lambda item: sum(map(len, item[1].values()))
        )
        return address, max(users, key=lambda user: len(users[user]))

    def _taken(self, address: str, user: str, index: int) -> Work:
        """One work out of a queue; it is not that one's turn again before the others'."""
        users = self._queues.pop(address)
        queue = users.pop(user)
        work = queue[index]
        del queue[index]
        if queue:
            users[user] = queue
        if users:
            self._queues[address] = users
        self._waiting -= 1
        return work

    def _go_on(self) -> None:
        while self._queues and self._running < THREADS:
            address, users = next(iter(self._queues.items()))
            work = self._taken(address, next(iter(users)), 0)
            if work.wanted() and not self.guesses.blocked(work.address, work.user):
                self._run(work)
            else:
                self._end(work, TOO_BUSY)

    def _run(self, work: Work) -> None:
        self._running += 1
        loop = asyncio.get_running_loop()
        task = loop.run_in_executor(self._threads, work.passwords.verify, work.user, work.secret)

        def looked(task: asyncio.Future[bool]) -> None:
            self._running -= 1
            if not task.cancelled():  # the hub is stopping
                self._judge(work, task.exception() is None and task.result())
                self._go_on()

        task.add_done_callback(looked)

    def _judge(self, work: Work, right: bool) -> None:
        count = self.guesses.right if right else self.guesses.wrong
        count(work.address, work.user)
        self._end(work, "" if right else BAD_CREDENTIALS)

    def _end(self, work: Work, reason: str) -> None:
        del self._known[work.key]
        for _, answered in work.asking:
            answered(reason)
