"""What the parts of the broker work on together, and what each of them may ask the broker for.

Queues, delays, retained messages, shares, reply ids and observers publish, ask for rights and
change state as anybody else does: through the broker, which owns them. They see it as this, so
that nothing here knows what is above it. Holds no rule of its own but one: state changes by
`change`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from hubbub.core.audit import Audit
from hubbub.core.clock import Clock
from hubbub.core.gate import Gate
from hubbub.core.homes import Homes
from hubbub.core.hooks import Hooks
from hubbub.core.limits import CONGESTED_BYTES, GROUP_BYTES, GROUP_ROWS, TURN_FETCHED_BYTES
from hubbub.core.log import Log
from hubbub.core.message import PUBLISHER, SPELLED, Message, Run
from hubbub.core.metrics import Metrics
from hubbub.core.names import HUB
from hubbub.core.past import Archive
from hubbub.core.quotas import Quotas
from hubbub.core.rights import PUBLISH, Absent, Rights
from hubbub.core.route import Route
from hubbub.core.scarce import Scarce
from hubbub.core.session import Session, Silent, Subscription
from hubbub.core.state import Key, State
from hubbub.core.topics import DELAYED, Filters, delayed_topic, matches
from hubbub.core.turns import Stint, Turns
from hubbub.schema import Row, numbered

# Of what waits for the disk, far from where those who publish have to wait.
LAGGING: Final = 4 * GROUP_ROWS
LAGGING_BYTES: Final = CONGESTED_BYTES // 2
PASSED_BYTES: Final = TURN_FETCHED_BYTES // 512  # some milliseconds for all of a turn


class Context:
    """Log, state, clock and counters of one hub, who is there and what they subscribed to.

    `clients`: who is connected, by number; `phantoms`: who is connected to another node of the
    cluster, by number; `sessions`: the same and those that are away and last,
    by protocol and id. `record`: "all", "durable" or "none" becomes a row, `exclude`: but never
    what matches these filters; `levels`: filters, and what answers to publishers promise where they
    match, of which the first one counts. `age` grows with every change of subscriptions; routes of
    another age are rebuilt when next used. `open`: the rights to everything, `itself`: the hub as a
    client. `unsettled`: whose `settle` the tick calls at its end; `later` calls something in
    another turn. `readings`: what each name under `$SYS` says now. `no_room`: why nothing is taken
    that would stay on the disk (in queues, for sessions that are away, delayed, under a new
    retained name), `no_quorum`: why nothing new can last just now, `unmet`: why a session
    that is not known here may be elsewhere all the same; "" as a rule. `scarce`: who may have how
    much of what a disk that fills has left; `tight`: whether that, or `no_room`, is so now.
    `undecided`: another node may have what lasts here, so nothing is due. `stood`: up to then
    (microseconds since 1970) this hub stood still, and who had come before may be at another node;
    0 = that is known; `look_awake` finds it out. `lost`: who was lost just now and may be at
    another node, each as it was; `may_be_elsewhere`: whether that is asked of one. `gates`:
    those of the listeners; `rules`: how often they changed. `check_source`: a retained message is
    given only if its publisher may still write there. `archive`: who finds what was published
    before.
    `elsewhere`: HOST:PORT of other nodes of the cluster, for clients that this one sends away.
    `homes`: where sessions last, if not here.
    """

    def __init__(self, clock: Clock, log: Log, record: str) -> None:
        self.clock = clock
        self.log = log
        self.record = record
        self.exclude: tuple[str, ...] = ()
        self.levels: list[tuple[str, int]] = []
        self.state = State()
        self.filters = Filters()
        self.metrics = Metrics(clock.stamp())
        self.age = 0
        self.clients: dict[int, Session] = {}
        self.phantoms: dict[int, Session] = {}
        self.sessions: dict[Key, Session] = {}
        self.no_room = ""
        self.tight = False
        self.no_quorum = self.unmet = ""
        self.undecided = False
        self.stood = 0
        self.look_awake: Callable[[], None] = lambda: None
        self.lost: dict[Key, Session] = {}
        self.may_be_elsewhere: Callable[[Session], bool] = lambda session: False
        self.readings: dict[str, Callable[[], str]] = {}
        self.open = Rights()
        self.audit = Audit(clock, log)
        self.quotas = Quotas(clock, self.metrics, self.audit)
        self.scarce = Scarce(clock, self.quotas, self.state)
        self.gates: list[Gate] = []
        self.hooks: Hooks | None = None
        self.watcher: Hooks | None = None
        self.inspector: Hooks | None = None
        self.controls: dict[str, Callable[[Run], None]] = {}
        self.itself: Session = Silent("", "hub", self.open)
        self.itself.number = HUB
        self.unsettled: list[Session] = []
        self.later = Turns(clock, self.open, self._unsettle, self.has_fetched_enough).later
        self.rules = 0
        self._changes = lambda: self.rules
        self.check_source = True
        self.archive = Archive()
        self.elsewhere: Callable[[], list[str]] = list
        self.homes = Homes()
        self._again: dict[object, Callable[[], object]] = {}
        self._fetched, self._fetched_in = 0, 0.0  # until this turn; which one it is
        self._passed = 0  # bytes: what was read and led to nothing, as if it were so many
        self._lagging: dict[object, Callable[[], object]] = {}
        self._rows_until = self._bytes_until = 0
        self._behind: set[object] = set()
        self._alone: set[object] = set()  # who has a work in turns that is not done

    def in_turns(self, pieces: Iterator[None]) -> None:
        """Do a long work now, piece by piece, and what is left of it in other turns. While much
        waits for the disk only some for each time that it has taken some: with the rows of all of
        it there would be so many that nobody is heard.
        """
        stint = Stint(self.clock)
        for _ in pieces:
            if self.lags():
                self.once_written(pieces, partial(self.in_turns, pieces))
                return
            if self.has_fetched_enough() or stint.over():
                self.later(partial(self.in_turns, pieces))
                return

    def one_in_turns(self, who: object, begin: Callable[[], Iterator[None]]) -> None:
        """The same of work of which each has one at a time: nothing, if the last is not done."""
        if who not in self._alone:
            self._alone.add(who)
            self.in_turns(self._until_done(who, begin()))

    def _until_done(self, who: object, pieces: Iterator[None]) -> Iterator[None]:
        try:
            yield from pieces
        finally:
            self._alone.discard(who)

    def has_fetched_enough(self) -> bool:
        """Whether so much was read from files in this turn that others are to be heard first."""
        fetched, turn = self.log.fetched() + self._passed, self.clock.turned
        if turn != self._fetched_in:
            self._fetched, self._fetched_in = fetched, turn
        return fetched - self._fetched >= TURN_FETCHED_BYTES

    def passed_over(self) -> None:
        """Something was read in this turn and led to nothing, so no link says that it is enough."""
        self._passed += PASSED_BYTES

    def lags(self) -> bool:
        """Whether so much waits for the disk that what the hub does by itself adds no more to it.

        Each time that the disk has taken a group it may add a part of one, all of it together:
        others may publish for hours as fast as the disk takes it.
        """
        log = self.log
        if not log.records:
            return False
        rows, size = log.position, log.pending_bytes
        many = rows - log.handed > LAGGING and rows > self._rows_until
        return many or (size > LAGGING_BYTES and size > self._bytes_until)

    def once_written(self, key: object, call: Callable[[], object]) -> None:
        """Call it when the disk has taken some of what waits; in a moment at the latest, for it may
        hang. One call a key; it may ask for another one.
        """
        self._lagging[key] = call

    def written(self) -> list[Callable[[], object]]:
        """What is to be called now that the disk has taken some, each first in its turn."""
        if not self._lagging:
            self._rows_until = self._bytes_until = 0
            return []
        calls, self._lagging = list(self._lagging.values()), {}
        self._rows_until = self.log.position + GROUP_ROWS // 2
        self._bytes_until = self.log.pending_bytes + GROUP_BYTES // 2
        return [*calls[1:], calls[0]]

    def catch_up_later(self, who: object, catch_up: Callable[[], None]) -> None:
        """That is why it does so in another turn."""
        if who not in self._behind:
            self._behind.add(who)
            self.later(partial(self._catch_up, who, catch_up))

    def _catch_up(self, who: object, catch_up: Callable[[], None]) -> None:
        self._behind.discard(who)
        catch_up()

    def lacks_disk(self, sender: Session, again: bool = False, size: int = 0) -> str:
        """Why nothing of this client, or not so many bytes, is taken that would stay on the disk,
        "" if it is. `again`: as with `Broker.lacks_room`.
        """
        ask = self.scarce.why_not if again else self.scarce.lacks
        return self.no_room or ask(sender, size)

    def on_account_of(self, whose: str) -> Session:
        """The hub itself, as which it publishes later what counts for somebody (`core.quotas`)."""
        itself = self.itself
        found = Silent(itself.protocol, itself.client, itself.rights)
        found.number, found.traffic, found.payer = itself.number, itself.traffic, whose
        return found

    def client(self, number: int) -> Session | None:
        """Who has this number, here or at another node."""
        return self.clients.get(number) or self.phantoms.get(number)

    def checks_names(self) -> bool:
        """Whether somebody checks users here, so that one whom the journal names was that user."""
        return any(gate.checks for gate in self.gates)

    def absent(self, user: str, client: str) -> Rights:
        """What a client of before this start may do, until it is here again."""
        if not self.gates:
            return self.open
        return Absent(partial(self._let_in, user, client), self._changes)

    def _let_in(self, user: str, client: str) -> list[Rights]:
        """What each gate lets somebody do whom it lets in."""
        asked = (gate.rights_of(user, client) for gate in self.gates)
        return [rights for rights in asked if rights is not None]

    def permissions(self, user: str, client: str, place: str) -> list[Rights]:
        """What the rules let somebody do who came in at that listener, each of them.

        If it is no more, or nobody knows which it was, those of all listeners.
        """
        gates = [gate for gate in self.gates if gate.place == place] or self.gates
        return [gate.permissions(user, client) for gate in gates]

    def _unsettle(self, session: Session) -> None:
        self.unsettled.append(session)

    def rules_changed(self) -> None:
        """Who may do what is asked anew."""
        self.rules += 1
        self.age += 1

    def change(self, row: Row) -> int:
        """Log a row, then fold it: the only way state changes.

        But for what comes in runs, which call what the fold ends in with the parts in hand: runs
        of messages (`Broker.publish`), and acknowledgements, of which a tick's are one row
        (docs/decisions/0017).
        """
        seq = self.log.append(row)
        self.state.apply(numbered(row, seq))
        return seq

    def note(self, row: Row) -> None:
        """Log a row that nothing needs after a restart, if everything is recorded."""
        if self.record == "all":
            self.log.append(row)

    def again(self, key: object, call: Callable[[], object]) -> None:
        """Call it in a moment: what is to be done needs a row that cannot be read now, or a disk
        that is not so far behind.

        One call a key; it may ask for another one.
        """
        self._again[key] = call

    def to_try_again(self) -> list[Callable[[], object]]:
        """What is to be called now, a moment later."""
        calls, self._again = {**self._again, **self._lagging}, {}
        self._lagging = {}
        return list(calls.values())

    def level(self, name: str) -> int:
        """How safe what is published there must be before its publisher hears so; 0 = no rule."""
        for topic_filter, level in self.levels:
            if matches(topic_filter, name):
                return level
        return 0

    def reading(self, name: str) -> Message:
        """What a name under `$SYS` says now."""
        return Message(name, self.readings[name]().encode(), sender=HUB)

    def signed(self, run: Run) -> Run:
        """A run that is retained, as the log keeps it: it says who must be permitted to write.

        Nobody, where the hub itself or what it lets do everything sent it; where the rules cannot
        be asked about somebody by name; or where it could not write there by itself (an answer).
        """
        sender, name = run.sender, run.route.name
        rights = sender.rights
        if not self.check_source or not (sender.user or rights is not self.open):
            return run
        if name.startswith(DELAYED):
            name = delayed_topic(name)[1]
        if not rights.found_by_name or not rights.may(PUBLISH, name):
            return run
        place = sender.opening.gate.place if sender.opening is not None else ""
        for message in run.messages():
            message.properties = {**(message.properties or {}), PUBLISHER: [sender.user, place]}
        kept = Run(sender, run.route, run.qos, run.count, SPELLED, b"", run.retain)
        kept.number = run.number
        kept.replace(run.messages())
        return kept

    # What the broker decides

    def lacks_room(
        self, sender: Session, route: Route, count: int, retain: bool, qos: int = 1, size: int = 0,
        again: bool = False,
    ) -> str:  # fmt: skip
        """Why a bound would lose some of `count` more messages there; "" if none does."""
        raise NotImplementedError

    def publish(self, run: Run) -> None:
        """Give a run to all on its route."""
        raise NotImplementedError

    def answer(self, message: Message, responder: Session) -> Route:
        """Publish the answer to a request, which its asker or the responder may send."""
        raise NotImplementedError

    def route(self, sender: Session, name: str) -> Route:
        """Who gets what that client publishes there."""
        raise NotImplementedError

    def enter(self, subscription: Subscription) -> None:
        """Give a subscription its place: in a queue, in a group or among the filters."""
        raise NotImplementedError

    def matching(self, name: str) -> list[Subscription]:
        """The subscriptions that match, of those who may receive the name."""
        raise NotImplementedError

    def address(self) -> int:
        """A number that is nobody's."""
        raise NotImplementedError

    def reachable(self, number: int) -> bool:
        """Whether a number is somebody's."""
        raise NotImplementedError

    def may(self, session: Session, verb: str, name: str) -> bool:
        """Whether a client may do one of `rights.VERBS` now."""
        raise NotImplementedError

    def may_publish(self, session: Session, name: str) -> bool:
        """Whether what it publishes there is taken: into a queue, to a topic, now or later."""
        raise NotImplementedError

    def owns(self, session: Session, name: str) -> bool:
        """Whether it is a queue that was made for this session."""
        raise NotImplementedError

    def refuse(self, session: Session, verb: str, name: str, rule: str = "") -> str:
        """Say in the log that a client may not do this; returns the reason for its own ears."""
        raise NotImplementedError
