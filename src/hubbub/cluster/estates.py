"""What lasts at a node, as one: its estate. It changes hands as a whole, and stays one.

    a: estate "a" ──── dies ────> b holds "b" and "a" ──── dies ────> c holds "c", "b" and "a"
    a is back, with the estate "a@1000", which is another one: nothing of it was ever in "a"

What others keep for sessions and queues that last is kept for their estate, not for a node. When
an estate has another holder what was kept goes there, from where it was taken up to: nothing is
moved, marked or told apart. And what was kept *in* an estate for others goes on from its holder,
under its own numbers, which the others have in their journals. So each message is taken once and in
order, by numbers of two estates, however many nodes died, came back and died again.

An estate is called after its node, and after the message that stopped the node's stream before it
began: `stops` has one estate end and another one begin. Each time it is taken over its `generation`
rises; of two that say they hold it the later one does, the other one does not know yet. Only one
heir answers for a stop, so no two of a generation say so.

An `Estate` is one of another node, as a session here: its filters are subscriptions, what it is
given goes to its holder. The one that a node began itself is given what goes live, too; those that
it took over are its own clients as far as that goes. Made by the membership. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from hubbub import schema
from hubbub.cluster import frames
from hubbub.cluster.keeping import PROTOCOL, Keeping, estate_and_origin, kept_row, waits_in
from hubbub.cluster.passing import Passing
from hubbub.core.link import Link
from hubbub.core.log import LEVELS
from hubbub.core.message import Message, Run
from hubbub.core.quotas import KEPT, payer
from hubbub.core.session import Session, Subscription, row_about
from hubbub.core.state import State
from hubbub.core.topics import CLIENT, is_group
from hubbub.schema import Row, column_of, name_to_wire

if TYPE_CHECKING:
    from hubbub.cluster.membership import Membership
    from hubbub.cluster.node import Node

UNREACHABLE: Final = "the cluster cannot be reached"
SLOW: Final = "slow node"

# What a node's journal says of estates, as rows `taken` of these names.
STOPPED: Final = "$stopped"  # which message stopped this node's own stream last
HELD: Final = "$held/"  # before an estate: it was taken over, and through how many nodes it came
TOOK: Final = "$took/"  # before ESTATE/ORIGIN: how far it has what was kept for it
AHEAD: Final = "$ahead"  # the time of its last row, when its clock had been ahead and was set back
OF: Final = "$of/"  # before ESTATE/PROTOCOL/CLIENT: that session, or queue, is of it: 1
ALSO: Final = 2  # or is not, and has what was in a queue of its name that was

ANY_SIZE: Final = 1 << 62
ANY_ROW: Final = 1  # one that is safe: what waits for it waits for what is before it in the link

Key = tuple[str, str]


def named(node: str, stopped: int) -> str:
    """The estate that a node began after its stream was stopped there; 0: it never was."""
    return f"{node}@{stopped}" if stopped else node


def began_by(estate: str) -> str:
    """The node that began it."""
    return estate.partition("@")[0]


def begun_behind(estate: str) -> int:
    """Which message of its stream the node began it behind."""
    return int(estate.partition("@")[2] or 0)


def own(state: State, node: str) -> str:
    """The estate of the node whose state this is."""
    return named(node, state.taken.get(STOPPED, 0))


def held(state: State) -> dict[str, int]:
    """Those that it took over, and their generations."""
    return {
        name.removeprefix(HELD): number
        for name, number in state.taken.items()
        if name.startswith(HELD)
    }


def members(state: State, how: int = 1) -> Iterator[tuple[Key, str]]:
    """Sessions and queues that are of another estate than the node's own, or `ALSO` have what is
    for it.
    """
    for name, number in state.taken.items():
        if name.startswith(OF) and number == how:
            estate, protocol, client = name.removeprefix(OF).split("/", 2)
            yield (protocol, client), estate


def took_of(estate: str, origin: str) -> str:
    return f"{TOOK}{estate}/{origin}"


def by_age(state: State, client: str) -> int:
    """The order in which what is kept for an estate goes there: what came the longest way first, as
    its authors have published in the others since.
    """
    return -state.taken.get(HELD + estate_and_origin(client)[1], 0)


def taken_row(name: str, number: int) -> Row:
    return Row(0, 0, schema.TAKEN, client=column_of(name), number=number)


class Estate(Session):
    """`holder`: the node that has it now, None while that is away. `wants`: its filters. `keeping`:
    what is kept here for its sessions that last, if it has any; then it is lasting itself, and
    stands also while nobody holds it; `passing`: what is handed on to be kept there instead.
    `told`: a node that held it has said all that it wants, since this one was started.
    `before`: the same as `keeping` of origins that were taken over, which goes first: who published
    it goes on where it was taken over. `ebbing`: filters for which nothing is to be kept any more
    as soon as all that is kept is on its way, and whether they are wanted live then; `_behind`:
    what goes live does so behind that.
    """

    def __init__(self, membership: Membership, name: str) -> None:
        super().__init__(PROTOCOL, name, membership.broker.open)
        self.far = self.once = True
        self.membership = membership
        self.broker = membership.broker
        self.holder: Node | None = None
        self.generation = 0
        self.keeping: Keeping | None = None
        self.passing: Passing | None = None
        self.before: list[Keeping] = []
        self.wants: dict[tuple[str, bool], Subscription] = {}
        self.told = False
        self.ebbing: dict[tuple[str, bool], bool] = {}
        self._behind = False
        encodings = membership.crossing.by_qos
        self.direct = Subscription(self, CLIENT, 2, encodings, literal=True)

    # Who holds it

    def held_by(self, node: Node, generation: int) -> None:
        self.holder, self.generation = node, generation
        self.begin()

    def begin(self) -> None:
        self.take_back()
        for keeping in self.keepings():
            keeping.begin()
        self.pump()

    def again(self) -> None:
        """Something was lost on the way there."""
        self.take_back()
        for keeping in self.keepings():
            keeping.again()
        self.pump()

    def away(self) -> None:
        """Nobody holds it any more, as far as is known; what only goes live is for nobody."""
        self.take_back()
        self.holder = None
        for key in [key for key, wish in self.wants.items() if not wish.qos or key in self.ebbing]:
            self._leave(key)
        for keeping in self.keepings():
            keeping.rest()

    def ready(self) -> bool:
        return self.holder is not None and self.holder.ready()

    def late(self) -> bool:
        """Whether nobody holds it for so long that nothing more is kept for it."""
        return self.holder is None and self.keeping is not None and self.keeping.late()

    # What it wants

    def want(self, key: tuple[str, bool], kept: bool) -> None:
        """`kept`: whether messages are kept for it. Who stays of those who want it gets what is
        kept, too, so nothing goes live before that.
        """
        if kept or not self._ebbs(key, wanted=True):
            self.ebbing.pop(key, None)
            old = self.wants.get(key)
            if old is None or bool(old.qos) != kept:
                self._leave(key)
                self._enter(key, kept)

    def leaves(self, key: tuple[str, bool]) -> None:
        """Nobody there wants it. Who comes now, or wants the same topic by another filter, gets
        what is kept, too: so this goes on until that is on its way. Not in a group, which would
        choose a node that has no member, and which promises no order.
        """
        if is_group(*key) or not self._ebbs(key, wanted=False):
            self._leave(key)

    def _ebbs(self, key: tuple[str, bool], wanted: bool) -> bool:
        """Whether it has to be kept for some more."""
        old = self.wants.get(key)
        if old is None or not old.qos or self.holder is None or self._all_left():
            return False
        self.ebbing[key] = wanted
        return True

    def _enter(self, key: tuple[str, bool], kept: bool) -> None:
        name, literal = key
        encodings = self.membership.crossing_of(name).by_qos
        subscription = Subscription(self, name, 2 if kept else 0, encodings, literal=literal)
        self.wants[key] = subscription
        if kept:
            self.keep()
            self.broker.subscribe(subscription)
        elif is_group(*key):
            self.broker.groups.join(subscription)
        else:
            self.broker.filters.add(subscription)

    def _leave(self, key: tuple[str, bool]) -> None:
        self.ebbing.pop(key, None)
        subscription = self.wants.pop(key, None)
        if subscription is None:
            return
        if subscription.qos:
            self._behind = True
            self.broker.unsubscribe(self, subscription.filter)
        elif is_group(*key):
            self.broker.groups.leave(subscription)
            self.membership.groups.pop(subscription.filter, None)
        else:
            self.broker.filters.remove(subscription)

    def recall(self, filters: Iterable[tuple[str, int]]) -> None:
        """What it wanted before this start."""
        for name, qos in filters:
            key = name, self.membership.is_literal(name)
            encodings = self.membership.crossing_of(name).by_qos
            self.wants[key] = Subscription(self, name, qos, encodings, literal=key[1])
        self.subscriptions = {wish.filter: wish for wish in self.wants.values()}

    # What is kept for it

    def keep(self) -> None:
        """Sessions there last: from now on this one does."""
        if self.keeping is None:
            self.lasting = True
            self.keeping = Keeping(self, self.broker, self.membership.keep)
            self.passing = Passing(self.keeping)
            if self.holder is not None:
                self.keeping.begin()

    def go_on_for(self, origin: str) -> None:
        """What another estate kept for it goes on from here."""
        self.take_back()
        state = self.broker.state
        self.keep()
        self.before.append(Keeping(self, self.broker, self.membership.keep, origin))
        self.before.sort(key=lambda keeping: by_age(state, keeping.session.client))
        if self.holder is not None:
            self.begin()

    def keepings(self) -> Iterator[Keeping]:
        yield from self.before
        if self.keeping is not None:
            yield self.keeping

    def keeping_of(self, origin: str) -> Keeping | None:
        if origin == self.membership.holdings.own:
            return self.keeping
        return next((one for one in self.before if one.origin == origin), None)

    def pump(self) -> None:
        self._send()
        if self.ebbing and self._all_left():
            for key, wanted in list(self.ebbing.items()):
                self._leave(key)
                if wanted:
                    self._enter(key, kept=False)
            self.broker.age += 1

    def _send(self) -> None:
        """What waits, of one origin after the other."""
        for keeping in list(self.keepings()):
            keeping.pump()
            if keeping.backlog.entries:
                return
            if keeping.origin:
                self.before.remove(keeping)
                keeping.end()
        if self.passing is not None:
            self.passing.pump()

    def taken(self, origin: str, upto: int) -> None:
        keeping = self.keeping_of(origin)
        if keeping is not None:
            keeping.taken(upto)
            if self.passing is not None and keeping is self.keeping:
                self.passing.taken(upto)
            self.pump()

    # What is handed on

    def hand_on(self, run: Run) -> bool:
        return self.passing is not None and self.passing.hand_on(run)

    def take_back(self) -> None:
        if self.passing is not None:
            self.passing.take_back()

    def look(self, now: float) -> None:
        """A few times a second."""
        if self.passing is not None:
            self.passing.look(now)

    def passes(self) -> bool:
        """Whether it is somewhere just now where that is understood, and as safe as here, and
        nothing goes before.
        """
        holder = self.holder
        if holder is None or not 0 < holder.keeps <= LEVELS[self.broker.log.most]:
            return False
        return self.ready() and not self.before

    def to_give_again(self) -> list[tuple[int, str]]:
        """What waits for a member of a group, by its seq: but of QoS 2, which another one must not
        get as well, only what was never sent (MQTT 5.0, 4.8.2).
        """
        return [
            (seq, group)
            for keeping in self.keepings()
            for number, seq, qos in waits_in(keeping.state)
            if (group := keeping.state.shared.get(number, ""))
            and (qos < 2 or number >= max(keeping.backlog.tried, keeping.backlog.sent))
        ]

    def _all_left(self) -> bool:
        """Whether all that is kept, or handed on, is on its way: what follows it comes later."""
        return self.caught_up() and not (self.passing is not None and self.passing.unsent)

    def caught_up(self) -> bool:
        """Whether all that is kept for it is on its way: retained messages come after it."""
        return all(one.backlog.sent == one.backlog.next for one in self.keepings())

    def settled(self) -> bool:
        """Whether its holder has all that was kept for it when that came."""
        return all(one.settled() for one in self.keepings())

    def lacks_room(self, sender: Session, count: int, size: int) -> str:
        """The disk bounds their bytes."""
        return self._why_not(sender, self.unacknowledged(), count)

    def _why_not(self, sender: Session, there: int, count: int) -> str:
        have = 0
        if self.keeping is not None and self.passing is not None and payer(sender):
            # Of what was handed on it is not known whose it is until it is kept here.
            have = self.keeping.tally.of(sender) + self.passing.count
        return self.broker.quotas.why_not(KEPT, sender, there, count, have)

    def excess(self, run: Run) -> int:
        """Who can be told was refused before."""
        keeping = self.keeping
        assert keeping is not None
        excess = min(keeping.backlog.excess(keeping.state.most, ANY_SIZE), run.count)
        if not excess and self._why_not(run.sender, 0, run.count):
            excess = run.count
        keeping.tally.add(run.sender, run.count - excess, keeping.backlog.next - excess)
        return excess

    def unacknowledged(self) -> int:
        passed = self.passing.count if self.passing is not None else 0
        return passed + sum(len(one.backlog.entries) for one in self.keepings())

    def is_over(self) -> None:
        """Nothing is kept for it any more. Who waits for what was handed on is answered when it is
        safe here: it may be for a session that is here now.
        """
        self.take_back()
        for keeping in self.before:
            keeping.end()
        self.shared = {}

    def begin_anew(self) -> None:
        """What was kept here for it is another's to keep now; so is all that is on its way."""
        for keeping in self.keepings():
            keeping.end()
        kept = self.keeping is not None
        if self.passing is not None:
            self.passing.forget()
        self.keeping, self.passing, self.before = None, None, []
        if kept:
            self.keep()
            for wish in self.subscriptions.values():
                row = row_about(self, schema.SUBSCRIBE, wish.filter, qos=wish.qos)
                self.broker.change(row)
            if self.holder is None:
                self.away()
        self.broker.age += 1

    # As a session

    def deliver(self, run: Run, subscription: Subscription) -> None:
        """Nothing that came from a node; and what is retained goes to all nodes another way."""
        if run.sender.far or run.route.control is not None:
            return
        if self.keeping is not None and run.qos and subscription.qos:
            self.pump()  # the broker has put it into the backlog
        elif (
            not run.retain and not self.generation
            or is_group(subscription.filter, subscription.literal)
        ):  # fmt: skip
            self._give(run, subscription)

    def _give(self, run: Run, subscription: Subscription) -> None:
        node, metrics = self.holder, self.broker.metrics
        if node is None or not node.there():
            metrics.drop(UNREACHABLE, run.count)
        elif node.link.choked and not self.broker.patience.has(self, node.link, run):
            metrics.drop(SLOW, run.count)
        else:
            self._write(node.link, run.seen_as(subscription.encodings[run.qos]), run.qos)
            self.membership.messages_out += run.count

    def _write(self, link: Link, data: bytes, qos: int) -> None:
        """What is kept waits for the journal here, and what goes live for nothing: where there were
        both for one filter, one after the other, it stays behind.
        """
        self._behind = self._behind and link.held is not None
        if self._behind and qos:
            link.hold(data, upto=ANY_ROW)
        else:
            link.write(data)

    def keep_for(self, run: Run, qos: int, group: str) -> None:
        """A row of its own: the same message may wait here for others of that estate, too."""
        self.keep_copy(run.messages()[0], qos, group, run.sender)

    def keep_copy(
        self, message: Message, qos: int, group: str, sender: Session | None = None
    ) -> None:
        self.keep()
        self.take_back()
        again = message.copied()
        again.retain = False
        run = self.membership.crossing.read_back(again)
        seq = self.broker.log.append_run(run, 0)
        self.note(sender or self.broker.itself, seq, qos, group)
        self.pump()

    def note(self, sender: Session, seq: int, qos: int, group: str) -> None:
        """A message that has a row waits for it, too."""
        self.broker.change(kept_row(self.client, seq, qos, group))
        if self.keeping is not None:
            self.keeping.tally.add(sender, 1, self.keeping.backlog.next)

    def changed(self, name: str, count: int) -> None:
        if self.holder is not None:
            self.holder.tell(frames.Count(name_to_wire(name), count))
