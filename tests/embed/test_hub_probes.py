"""What the original hub's API did on the wire, call by call, replayed against `Hub`.

`protocols/smq/traces/callbacks-probes.txt` has the frames. Ids are random there and here: each
id of the trace stands for the one our hub gave. Where the original is wrong the probe says the
better behaviour instead of looking into the trace, and names it in a comment.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hubbub import Hub
from hubbub.embed.hub import Info, Peer
from hubbub.protocols.smq import codec
from tests.clients import PATIENCE
from tests.protocols.smq.device import HEAD, Heard, told

TRACE = Path(__file__).parents[1] / "protocols/smq/traces/callbacks-probes.txt"
SECTIONS = {
    part.partition("\n")[0]: re.findall(r"\b00[0-9a-f]{4,}\b", part.partition("\n")[2])
    for part in re.split(r"^## ", TRACE.read_text("utf-8"), flags=re.MULTILINE)[1:]
}
INIT_BYTES = 17  # with 127.0.0.1


class Socket:
    """A device on a raw socket, which has heard Init."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.etid = 0

    def say(self, kind: int, *numbers: int, rest: bytes = b"") -> None:
        self.writer.write(codec.framed(codec.message(kind, *numbers, rest=rest)))

    async def hears(self) -> bytes:
        """The next message, type and body; b"" at the end of the connection."""
        async with asyncio.timeout(PATIENCE):
            try:
                size = int.from_bytes(await self.reader.readexactly(2), "big")
            except asyncio.IncompleteReadError:
                return b""
            return await self.reader.readexactly(size - 2)

    async def settle(self) -> list[Heard]:
        """All that came until the hub has worked off what was said."""
        self.say(codec.PING)
        found = []
        while (message := await self.hears())[:1] != bytes((codec.PONG,)):
            found.append(told(message))
        return found


class Stage:
    """A hub with every option, two devices, and which of our ids each id of the trace is."""

    def __init__(self) -> None:
        self.answer: Any = 0
        self.drops: list[tuple[Any, ...]] = []
        self.ids: dict[int, int] = {0: 0, 1: 1}
        self.frames: list[str] = []
        self.hub = Hub(
            listen="127.0.0.1:0",
            queuesize=5,
            authenticate=lambda credentials, info: self.answer,
            permittop=lambda topic, issub, peer: not topic.startswith("deny/"),
            permitsubtop=lambda subtopic, peer: subtopic != "denysub",
            onpublish=lambda data, *rest: data != b"block",
            ondrop=lambda *dropped: self.drops.append(dropped),
            onconnect=self.came,
        )
        self.infos: list[Info] = []

    def came(self, tid: int, info: Info, peer: Peer) -> None:
        self.infos.append(info)

    def id(self, digits: str) -> int:
        return self.ids[int(digits, 16)]

    async def enter(self, uid: bytes, info: bytes = b"my info") -> Socket:
        host, _, port = self.hub.addresses[0].rpartition(":")
        device = Socket(*await asyncio.open_connection(host, int(port)))
        device.writer.write(HEAD + codec.framed(codec.build_connect(uid, b"", info)))
        await device.reader.readexactly(INIT_BYTES)
        return device

    async def heard(self, device: Socket) -> None:
        """The device hears the next frame of the trace."""
        there = bytes.fromhex(self.frames.pop(0))[2:]
        kind = there[0]
        here = await device.hears()
        assert here[:1] == there[:1], (here, told(there))
        pairs = zip(
            codec.numbers_of(kind, there[1:]), codec.numbers_of(kind, here[1:]), strict=True
        )
        for index, (number, ours) in enumerate(pairs):
            first_is_plain = kind not in (codec.PUBLISH, codec.CHANGE)
            counts = kind == codec.CHANGE and index or first_is_plain and not index
            assert (number if counts else self.ids.setdefault(number, ours)) == ours, told(here)
        rest, ours_rest = codec.rest_of(kind, there[1:]), codec.rest_of(kind, here[1:])
        # A refusal of ours says why, where the original says nothing.
        assert ours_rest == rest or (kind == codec.CONNACK and not rest), told(here)

    async def refused(self, answer: Any) -> None:
        self.answer = answer
        device = await self.enter(b"uid-RRRR")
        await self.heard(device)
        assert await device.hears() == b""
        self.answer = 0


async def refusals(s: Stage, play: Callable[[str], None]) -> None:
    play("authenticate -> 3 + reason")
    await s.refused((3, "bad credentials, sorry"))
    play("authenticate -> nil")
    await s.refused(None)
    play("authenticate -> 4 + reason")
    await s.refused((4, "need a cert"))


async def permits(s: Stage, play: Callable[[str], None], a: Socket, b: Socket) -> None:
    play("permittop denies subscribe and create")
    a.say(codec.SUBSCRIBE, rest=b"deny/x")
    a.say(codec.CREATE, rest=b"deny/x")
    await s.heard(a)
    await s.heard(a)
    play("permitsubtop denies")
    a.say(codec.CREATESUB, rest=b"denysub")
    await s.heard(a)
    play("denied subscribe to an existing topic (server created)")
    assert s.hub.create("deny/y")
    a.say(codec.SUBSCRIBE, rest=b"deny/y")
    await s.heard(a)


async def messages(s: Stage, play: Callable[[str], None], a: Socket, b: Socket) -> None:
    hub = s.hub
    top = s.ids[0x95FDA403] = hub.create("top")
    sub = s.ids[0x8C32D6FF] = hub.createsub("sub")
    a.say(codec.SUBSCRIBE, rest=b"top")
    assert told(await a.hears()) == ("Suback", 0, top, b"top")
    play("onpublish false -> not delivered")
    b.say(codec.PUBLISH, top, b.etid, 0, rest=b"block")
    b.say(codec.PUBLISH, top, b.etid, 0, rest=b"pass")
    await s.heard(a)
    play("publish to the server etid 1: server echo comes from ptid 1")
    hub.subscribe(
        "self", lambda data, ptid, tid, subtid, peer: hub.publish(b"echo:" + data, ptid, subtid)
    )
    a.say(codec.PUBLISH, 1, a.etid, sub, rest=b"hi server")
    await s.heard(a)
    play("publish to a topic without subscribers -> ondrop")
    none = hub.create("nobody")
    b.say(codec.PUBLISH, none, b.etid, 0, rest=b"lost")
    assert await b.settle() == []
    (dropped,) = s.drops
    assert dropped[:4] == (b"lost", b.etid, none, 0) and dropped[4].tid == b.etid
    play("server publish to topic by name")
    hub.publish("srv msg", "top")
    await s.heard(a)
    play("server publish table -> JSON, with subtopic name")
    hub.publish({"a": 1}, "top", "sub")
    await s.heard(a)
    play("server publish with 4th arg ptid")
    s.frames.clear()  # the original ignores it
    hub.publish("as b", "top", None, b.etid)
    assert told(await a.hears()) == ("Publish", top, b.etid, 0, b"as b")
    play("server pubon(data,to,from,stid)")
    assert hub.pubon("pubon data", a.etid, b.etid, 9)
    s.ids[9] = 9
    await s.heard(a)
    play("server publish to etid directly")
    hub.publish("to you", a.etid)
    await s.heard(a)


async def numbers(s: Stage, play: Callable[[str], None], a: Socket, b: Socket) -> None:
    hub = s.hub
    play("server observe/subscribe counts: server subscribes top -> count includes the server")
    a.say(codec.OBSERVE, s.id("95fda403"))
    await s.heard(a)
    hub.subscribe("top", lambda *message: None)
    await s.heard(a)
    hub.unsubscribe("top")
    await s.heard(a)
    play("create twice / with used tid / with tid 0")
    assert hub.create("new", 77) == hub.create("new", 78) == 77
    assert hub.create("other", 77) not in (0, 77) and hub.create("third", 0) != 0
    play("createsub numbers")
    assert (hub.createsub("s77", 77), hub.createsub("s77"), hub.createsub(None)) == (77, 77, 0)
    play("queuesize()")
    assert hub.queuesize() == (5, 0)
    play("gettid, tid2topic, topic2tid unknown")
    assert hub.gettid() == 1 and hub.tid2topic(4242) is None
    assert hub.topic2tid("unknown") is None and hub.subtopic2tid("unknown") is None
    play("etid2peer / topics type per subscription count")
    peer = hub.etid2peer(a.etid)
    assert peer is not None and peer.uid == "uid-AAAA" and s.infos[0].info == "my info"
    assert list(peer.topics or {}) == [s.id("95fda403")]  # there a plain number if it is one
    play("publish >0xFFF0 from server")
    assert hub.publish(b"x" * 0xFFF1, "top")  # there an error; raw sockets do not get it
    assert await a.settle() == []


async def ends(s: Stage, play: Callable[[str], None], a: Socket, b: Socket) -> None:
    hub = s.hub
    play("shutdown(msg,etid)")
    hub.shutdown("go away", a.etid)
    await s.heard(a)
    s.frames.clear()  # a Change behind the Disconnect, about its own leaving
    assert await a.hears() == b""
    assert await b.settle() == []
    play("shutdown(nil,etid): closes ALL (msg nil => etid ignored)")
    a = await connected(s, b"uid-AAAA")
    hub.shutdown(None, a.etid)
    assert await a.hears() == b""
    assert await b.settle() == []  # ours closes that one
    play("shutdown(): all closed without Disconnect")
    a = await connected(s, b"uid-AAAA")
    hub.shutdown()
    assert await a.hears() == await b.hears() == b""
    play("shutdown(msg): all get Disconnect+msg")
    a, b = await connected(s, b"uid-AAAA"), await connected(s, b"uid-BBBB")
    hub.shutdown("upgrade")
    await s.heard(a)
    assert told(await b.hears()) == ("Disconnect", b"upgrade")
    assert await a.hears() == await b.hears() == b""
    play("hub usable after shutdown")
    a = await s.enter(b"uid-AAAA")
    await s.heard(a)
    a.say(codec.CREATE, rest=b"top")
    await s.heard(a)


async def connected(s: Stage, uid: bytes) -> Socket:
    device = await s.enter(uid)
    number = told(await device.hears())[2]
    assert isinstance(number, int)
    device.etid = number
    return device


async def test_the_hubs_api_does_on_the_wire_what_the_original_did() -> None:
    s = Stage()
    left = dict(SECTIONS)

    def play(title: str) -> None:
        assert s.frames == [], "the probe before has said more"
        s.frames = left.pop(title)

    parts: list[Callable[..., Awaitable[None]]] = [permits, messages, numbers, ends]
    async with s.hub:
        await refusals(s, play)
        play("good")
        a, b = await s.enter(b"uid-AAAA"), await s.enter(b"uid-BBBB")
        await s.heard(a)
        await s.heard(b)
        a.etid, b.etid = s.id("75f217a2"), s.id("fc8e0b7e")
        for part in parts:
            await part(s, play, a, b)
    assert s.frames == [] and left == {}
