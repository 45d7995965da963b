"""Hand-made frames that were sent to the original hub, and what it answered: ours answers the same.

`traces/raw-probes.txt` has the answers; here is what is sent. Each probe needs what was there
before, so its test plays all up to it. Ids are random there and here: each id of the trace
stands for the one our hub gave. Where the original is wrong, or where our hub rules otherwise,
the probe says the better behaviour instead of looking into the trace.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hubbub.protocols.smq import codec
from tests.protocols.smq.device import Device, Hub, told

TRACE = (Path(__file__).parent / "traces" / "raw-probes.txt").read_text("utf-8")
SECTIONS = {
    part.partition("\n")[0]: part.partition("\n")[2].strip().splitlines()
    for part in re.split(r"^## ", TRACE, flags=re.MULTILINE)[1:]
}
PING, PONG = codec.message(codec.PING), codec.message(codec.PONG)

# The first number of these is a code or a version, the second an id or a seed.
PLAIN_FIRST = {codec.INIT, codec.CONNACK, codec.SUBACK, codec.CREATEACK, codec.CREATESUBACK}

# What is asked of a program beside the hub, in tests of the hub's API.
OF_THE_PROGRAM = {
    "server static tids",
    "topic ids are per hub: alpha on stat hub",
    "hub-side state:",
}


class Stage:
    """The devices, and which of our ids each id of the trace is."""

    def __init__(self) -> None:
        self.hub = Hub()
        self.devices: dict[str, Device] = {}
        self.ids: dict[int, int] = {0: 0}
        self.lines: list[str] = []

    def __getitem__(self, name: str) -> Device:
        return self.devices[name]

    # Saying

    def enter(self, name: str, uid: bytes = b"", connect: bytes = b"") -> Device:
        """A new device; `connect` is its Connect if it is not the usual one."""
        device = self.devices[name] = self.hub.device()
        self.init = device.bodies()
        device.raw(connect or codec.build_connect(uid))
        return device

    def quick(self, name: str, uid: bytes = b"") -> Device:
        """Connected, and the trace does not say how."""
        device = self.devices[name] = self.hub.device(uid or f"uid-{name}{name}".encode())
        return device

    def id(self, digits: str) -> int:
        return self.ids[int(digits, 16)]

    def name(self, digits: str, number: int) -> None:
        """The trace's id of something that was made without being written down there."""
        self.ids[int(digits, 16)] = number

    def sent(self, name: str, line: int = 0) -> None:
        """Say the frame that the trace says was sent."""
        [frame] = self._frames(line)
        message = frame[2:]
        numbers = codec.numbers_of(message[0], message[1:])
        ours = [self.ids.get(number, number) for number in numbers]
        rest = codec.rest_of(message[0], message[1:])
        self[name].raw(codec.message(message[0], *ours, rest=rest))

    # Hearing

    def _frames(self, line: int) -> list[bytes]:
        return [bytes.fromhex(one) for one in re.findall(r"\b[0-9a-f]{6,}\b", self.lines[line])]

    def hears(self, name: str, line: int = 0, heard: list[bytes] | None = None) -> None:
        """The device heard what the trace says in that line of the probe, and no more."""
        device = self[name]
        bodies = device.bodies() if heard is None else heard
        expected = self._frames(line)
        assert len(bodies) == len(expected), [told(body) for body in bodies]
        for body, frame in zip(bodies, expected, strict=True):
            self._compare(body, frame[2:])
        if "EOF" in self.lines[line]:
            assert device.closed

    def _compare(self, here: bytes, there: bytes) -> None:
        kind = there[0]
        assert here[0] == kind, (told(here), told(there))
        pairs = zip(
            codec.numbers_of(kind, there[1:]), codec.numbers_of(kind, here[1:]), strict=True
        )
        for index, (number, ours) in enumerate(pairs):
            is_id = (index == 1) if kind in PLAIN_FIRST else not (kind == codec.CHANGE and index)
            expected = self.ids.setdefault(number, ours) if is_id else number
            assert expected == ours, (told(here), told(there))
        rest = codec.rest_of(kind, there[1:])
        ours_rest = codec.rest_of(kind, here[1:])
        # A refusal of ours says why, where the original says nothing.
        assert ours_rest == rest or (kind == codec.CONNACK and not rest)

    def nothing(self, *names: str) -> None:
        for name in names:
            assert self[name].bodies() == [], name


Probe = Callable[[Stage], None]
PROBES: dict[str, Probe] = {}


def probe(title: str) -> Callable[[Probe], Probe]:
    """A probe of the trace, by the beginning of its title."""

    def keep(function: Probe) -> Probe:
        [whole] = [title] if title in SECTIONS else [o for o in SECTIONS if o.startswith(title)]
        assert whole not in PROBES
        PROBES[whole] = function
        return function

    return keep


@pytest.mark.parametrize("title", [title for title in SECTIONS if title not in OF_THE_PROGRAM])
def test_the_hub_answers_as_the_original_did(title: str) -> None:
    stage = Stage()
    for one, play in PROBES.items():
        stage.lines = SECTIONS[one]
        play(stage)
        if one == title:
            return
    raise AssertionError(f"no probe is called {title!r}")


# Connecting


@probe("v1 connect")
def _(s: Stage) -> None:
    s.enter("A", connect=codec.build_connect(b"uid-AAAA", b"", b"my info"))
    s.hears("A", 0, s.init)
    s.hears("A", 1)


@probe("v2 connect")
def _(s: Stage) -> None:
    s.enter("B", connect=b"\x02\x02\0\0\x08uid-BBBB\0info")
    s.hears("B", 0, s.init)
    s.hears("B", 1)
    s["A"].etid, s["B"].etid = s.id("cf3f8fec"), s.id("d4fce6db")


def refused(s: Stage, connect: bytes) -> None:
    s.enter("D", connect=connect)
    s.hears("D")
    assert s["D"].closed


@probe("uid of 5 bytes")
def _(s: Stage) -> None:
    refused(s, b"\x02\x01\x05abcde\0")


@probe("version 3")
def _(s: Stage) -> None:
    refused(s, b"\x02\x03\x06abcdef\0")


@probe("first msg not Connect")
def _(s: Stage) -> None:
    refused(s, PING)


@probe("connect read timeout")
def _(s: Stage) -> None:
    s.devices["D"] = device = s.hub.device()
    device.bodies()
    device.far.connection.wake(s.hub.clock.now() + 4)
    s.hears("D")
    assert device.closed


@probe("truncated Connect")
def _(s: Stage) -> None:
    """The original takes what is there for the uid."""
    device = s.enter("D", connect=b"\x02\x01\x20abcdef")
    assert device.hear()[0][:2] == ("Connack", 1) and device.closed


@probe("Connect body only version")
def _(s: Stage) -> None:
    """The original never answers."""
    device = s.enter("D", connect=b"\x02\x01")
    assert device.hear()[0][:2] == ("Connack", 1) and device.closed


# Names


@probe("subscribe")
def _(s: Stage) -> None:
    s["A"].say(codec.SUBSCRIBE, rest=b"alpha")
    s.hears("A")


@probe("create existing")
def _(s: Stage) -> None:
    s["B"].say(codec.CREATE, rest=b"alpha")
    s.hears("B")


@probe("create new")
def _(s: Stage) -> None:
    s["B"].say(codec.CREATE, rest=b"beta")
    s.hears("B")


@probe("createsub")
def _(s: Stage) -> None:
    s["B"].say(codec.CREATESUB, rest=b"sub1")
    s.hears("B")


@probe("dup subscribe")
def _(s: Stage) -> None:
    s["A"].say(codec.SUBSCRIBE, rest=b"alpha")
    s.hears("A")


@probe("empty topic subscribe")
def _(s: Stage) -> None:
    s["A"].say(codec.SUBSCRIBE, rest=b"")
    s.hears("A")


@probe("topic with wildcard chars")
def _(s: Stage) -> None:
    s["B"].say(codec.SUBSCRIBE, rest=b"#")
    s.hears("B", 0)
    s["B"].say(codec.SUBSCRIBE, rest=b"x/+")
    s.hears("B", 1)
    s["B"].publish(s["B"].create(b"x/y"), b"to nobody")
    s.hears("A", 2)
    s.nothing("B")


# Publishing


@probe("publish B->alpha sub1")
def _(s: Stage) -> None:
    s.sent("B")
    s.hears("A", 1)
    s.hears("B", 2)


@probe("publish by a subscriber")
def _(s: Stage) -> None:
    s.sent("A")
    s.hears("A", 1)


@probe("publish to etid of A by B")
def _(s: Stage) -> None:
    s["B"].publish(s["A"].etid, b"direct")
    s.hears("A")


@probe("publish to unknown tid")
def _(s: Stage) -> None:
    s["B"].publish(0x1234, b"x")
    s.hears("B")


@probe("publish to tid 0")
def _(s: Stage) -> None:
    s["B"].publish(0, b"x")
    s.hears("B")


@probe("publish to own etid")
def _(s: Stage) -> None:
    s["B"].publish(s["B"].etid, b"me")
    s.hears("B")


@probe("publish empty payload")
def _(s: Stage) -> None:
    s.sent("B")
    s.hears("A", 1)


@probe("publish unknown subtid")
def _(s: Stage) -> None:
    s["B"].publish(s.id("bf58cc0e"), b"s", 0xDEADBEEF)
    s.hears("A")


@probe("max payload 0xFFF0")
def _(s: Stage) -> None:
    sent = codec.message(codec.PUBLISH, s.id("bf58cc0e"), s["B"].etid, 0, rest=b"x" * 0xFFF0)
    s["B"].raw(sent)
    assert s["A"].bodies() == [sent] and len(codec.framed(sent)) == 65535


# Observing


def observes(s: Stage, name: str, number: int, line: int = 0) -> None:
    s[name].say(codec.OBSERVE, number)
    s.hears(name, line)


@probe("observe named topic")
def _(s: Stage) -> None:
    observes(s, "B", s.id("bf58cc0e"))


@probe("2nd observe of same topic")
def _(s: Stage) -> None:
    observes(s, "B", s.id("bf58cc0e"))


@probe("third client subscribes alpha")
def _(s: Stage) -> None:
    s.quick("C").say(codec.SUBSCRIBE, rest=b"alpha")
    s.hears("C", 0)
    s.hears("B", 1)


@probe("C resubscribes")
def _(s: Stage) -> None:
    s["C"].say(codec.SUBSCRIBE, rest=b"alpha")
    s.hears("C", 0)
    s.hears("B", 1)


@probe("C unsubscribes")
def _(s: Stage) -> None:
    s["C"].say(codec.UNSUBSCRIBE, s.id("bf58cc0e"))
    s.hears("C", 0)
    s.hears("B", 1)


@probe("C unsubscribes again")
def _(s: Stage) -> None:
    s["C"].say(codec.UNSUBSCRIBE, s.id("bf58cc0e"))
    s.hears("C", 0)
    s.hears("B", 1)


@probe("C unsubscribe unknown tid")
def _(s: Stage) -> None:
    s["C"].say(codec.UNSUBSCRIBE, 0x7777)
    s.hears("C", 0)


@probe("C subscribes again then dies")
def _(s: Stage) -> None:
    s["C"].say(codec.SUBSCRIBE, rest=b"alpha")
    s.hears("C", 0)
    s.hears("B", 1)
    s["C"].hang_up()
    s.hears("B", 2)


@probe("unobserve with TWO observers")
def _(s: Stage) -> None:
    gamma = s["B"].create(b"gamma")
    s.name("463539f2", gamma)
    observes(s, "A", gamma, 0)
    observes(s, "B", gamma, 1)
    s["B"].say(codec.UNOBSERVE, gamma)
    s.quick("C", b"uid-CCC2").say(codec.SUBSCRIBE, rest=b"gamma")
    s.hears("C", 2)
    s.hears("A", 3)
    s.hears("B", 4)


@probe("observe etid of C")
def _(s: Stage) -> None:
    s.name("af452edd", s.quick("D").etid)
    observes(s, "B", s["D"].etid, 0)
    s["D"].say(codec.DISCONNECT)
    s.hears("D", 2)
    s.hears("B", 3)


@probe("observe dead/unknown etid")
def _(s: Stage) -> None:
    observes(s, "B", s.id("af452edd"))


@probe("observe own etid")
def _(s: Stage) -> None:
    observes(s, "B", s["B"].etid)


@probe("observe the server etid 1")
def _(s: Stage) -> None:
    observes(s, "B", 1)


@probe("observe a topic with zero subscribers")
def _(s: Stage) -> None:
    observes(s, "B", s.id("8c99d2df"))


# Ping, and what no client may send


@probe("ping -> pong")
def _(s: Stage) -> None:
    s["B"].raw(PING)
    s.hears("B")


@probe("unsolicited pong ignored")
def _(s: Stage) -> None:
    s["B"].raw(PONG)
    s.hears("B", 0)
    s["B"].raw(PING)
    s.hears("B", 1)


@probe("wrong ptid in Publish")
def _(s: Stage) -> None:
    s["C"].say(codec.UNSUBSCRIBE, s.id("463539f2"))
    s.quick("D").publish(s.id("bf58cc0e"), b"forged", sender=s["A"].etid)
    s.hears("D", 0)
    s.hears("A", 1)


def closes(title: str, *messages: bytes) -> None:
    def play(s: Stage) -> None:
        device = s.quick("D")
        for message in messages:
            device.far.say(message)
        s.hears("D")
        assert device.closed

    probe(title)(play)


closes("short Publish", codec.framed(b"\x08" + bytes(11)))
closes("short Unsubscribe", codec.framed(b"\x09\0\0"))
closes("short Observe", codec.framed(b"\x0e\0\0"))
closes("unknown msg 10", codec.framed(b"\x0a"))
closes("unknown msg 200", codec.framed(b"\xc8"))
closes("Connect again when connected", codec.framed(codec.build_connect(b"uid-DDDD")))
closes("server-only msg Suback", codec.framed(codec.message(codec.SUBACK, 0, 1)))
closes("packet len 0", b"\0\0")
closes("packet len 2", b"\0\2")


@probe("packet split in single bytes")
def _(s: Stage) -> None:
    for byte in codec.framed(PING):
        s["B"].far.say(bytes((byte,)))
    s.hears("B")


@probe("coalesced 3 pings")
def _(s: Stage) -> None:
    subscribe = codec.framed(codec.message(codec.SUBSCRIBE, rest=b"alpha"))
    s.quick("D").far.say(codec.framed(PING) * 3 + subscribe)
    s.hears("D")
    s["D"].hang_up()
    s["B"].bodies()


closes("Disconnect from client", codec.framed(codec.message(codec.DISCONNECT)))
closes("Disconnect with payload", codec.framed(codec.message(codec.DISCONNECT, rest=b"bye")))


# The same uid again


@probe("same uid connects a second time")
def _(s: Stage) -> None:
    old = s.quick("old", b"uid-SAME")
    s.name("70bbd457", old.etid)
    old.subscribe(b"alpha")
    s["B"].say(codec.OBSERVE, old.etid)
    new = s.quick("new", b"uid-SAME")
    heard = s["B"].bodies()
    s.hears("B", 0, heard[:2])
    assert new.etid == old.etid
    s.hears("old", 2)
    s.hears("B", 4, heard[2:])
    new.raw(PING)
    s.hears("new", 5)
    s["B"].publish(new.etid, b"hi")
    s.hears("new", 6)


@probe("reconnect after clean close")
def _(s: Stage) -> None:
    before = s["new"].etid
    s["new"].say(codec.DISCONNECT)
    assert s.quick("new", b"uid-SAME").etid != before


# PubFrag


def fragment(s: Stage, tid: int, payload: bytes, sender: int = 0, subtid: int = 0) -> None:
    s["B"].say(codec.PUBFRAG, tid, sender or s["B"].etid, subtid, rest=payload)


@probe("PubFrag: 3 fragments")
def _(s: Stage) -> None:
    s.sent("B", 0)
    s.sent("B", 1)
    s.hears("A", 2)
    s.sent("B", 3)
    s.hears("A", 4)


@probe("PubFrag: single final fragment")
def _(s: Stage) -> None:
    fragment(s, s.id("bf58cc0e"), b"solo")
    s.hears("A")


@probe("PubFrag: empty final fragment")
def _(s: Stage) -> None:
    fragment(s, 0, b"abc")
    fragment(s, s.id("bf58cc0e"), b"")
    s.hears("A")


@probe("PubFrag: wrong ptid in the first")
def _(s: Stage) -> None:
    fragment(s, 0, b"ab", sender=s["A"].etid)
    fragment(s, s.id("bf58cc0e"), b"cd")
    s.hears("A")


@probe("PubFrag: subtid in the first")
def _(s: Stage) -> None:
    fragment(s, 0, b"ab", subtid=9)
    fragment(s, s.id("bf58cc0e"), b"cd", subtid=5)
    s.hears("A")


@probe("PubFrag interleaved")
def _(s: Stage) -> None:
    fragment(s, 0, b"frag1-")
    s["B"].publish(s.id("bf58cc0e"), b"plain")
    s["B"].raw(PING)
    fragment(s, s.id("bf58cc0e"), b"frag2")
    s.hears("A", 0)
    s.hears("B", 1)


@probe("PubFrag total exactly")
def _(s: Stage) -> None:
    fragment(s, 0, b"x" * 40_000)
    fragment(s, s.id("bf58cc0e"), b"x" * (0xFFF0 - 13 - 40_000))
    [body] = s["A"].bodies()
    assert len(codec.framed(body)) == 65522


@probe("PubFrag payload one more")
def _(s: Stage) -> None:
    fragment(s, 0, b"x" * 40_000)
    fragment(s, s.id("bf58cc0e"), b"x" * (0xFFF0 - 12 - 40_000))
    s.nothing("A")
    s["B"].raw(PING)
    s.hears("B", 1)


@probe("PubFrag overflow")
def _(s: Stage) -> None:
    device = s.quick("E")
    for _ in range(2):
        device.say(codec.PUBFRAG, 0, device.etid, 0, rest=b"x" * 40_000)
    s.hears("E")


@probe("PubFrag wrong ptid in final")
def _(s: Stage) -> None:
    s.quick("E").say(codec.PUBFRAG, s.id("bf58cc0e"), s["A"].etid, 0, rest=b"x")
    s.hears("E")


# What the original does wrong


@probe("KNOWN REFERENCE BUG: sole observer unobserves")
def _(s: Stage) -> None:
    """Who is subscribed stays so, and who comes later is let in."""
    subscriber = s.quick("Q", b"uid-QQQQ")
    delta = subscriber.subscribe(b"delta")
    s.name("21a9222b", delta)
    observes(s, "B", delta, 0)
    s["B"].say(codec.UNOBSERVE, delta)
    s["B"].publish(delta, b"still here")
    assert [heard[-1] for heard in subscriber.hear()] == [b"still here"]
    late = s.quick("F")
    assert late.subscribe(b"delta") == delta and not late.closed
    s.nothing("B")
