"""Frames that no node sends, said by somebody who can speak on the cluster's subjects: of chance,
of a node that is dead, said once more, with lengths and counts that are not so.

Who can speak as a node can say everything (`docs/security.md`); but nothing of it may break the
hub, take its memory or time, or what is kept for a node that lives.
"""

from __future__ import annotations

import random
import struct
import time
import zlib

import pytest

from hubbub.cluster import frames
from hubbub.cluster.hearing import REASONS
from hubbub.core.limits import CLUSTER_DEAD_SECONDS, CLUSTER_FRAME_BYTES, CLUSTER_RUN
from tests.cluster.test_keeping import Keepers
from tests.cluster.world import World

HEAD = struct.Struct(">3sBI")
SECONDS = 1.0  # for one frame


class Tapped(Keepers):
    """`said`: every frame that went over a line, by its sender."""

    def __init__(self, seed: int = 0) -> None:
        self.said: dict[str, list[bytes]] = {name: [] for name in "abc"}
        super().__init__(seed)

    def tick(self) -> None:
        super().tick()
        for name in self.members:
            known = self.said[name]
            known += [one for line in self.lines(name).lines.values() for one in line]
            del known[:-400]


def signed(frame: bytes) -> bytes:
    """With the checksum that it should have."""
    rest = frame[HEAD.size :]
    if not rest:
        return frame
    return HEAD.pack(frames.MAGIC, frames.VERSION, zlib.crc32(rest)) + rest


def bent(chance: random.Random, frame: bytes) -> bytes:
    data = bytearray(frame)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(data))
        change = chance.randrange(4)
        if change == 0:
            data[at] = chance.randrange(256)
        elif change == 1:
            data[at : at + 4] = chance.choice((b"\xff\xff\xff\xff", b"\x00\x00\x00\x00"))
        elif change == 2:
            del data[at : at + chance.randrange(1, 9)]
        else:
            data[at:at] = data[: chance.randrange(64)]
        if not data:
            return b""
    return bytes(data)


def talk(world: World) -> None:
    """Records of most kinds have crossed."""
    writer, reader = world.client("a", "writer"), world.client("b", "reader")
    reader.wish("x/#")
    world.carry()
    for number in range(3):
        world.publish(writer, "x/1", b"%d" % number, retain=True)
        world.wait(0.5)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_said_in_whoevers_name_nodes_go_on(seed: int) -> None:
    world, chance = Tapped(seed), random.Random(seed)
    world.meet()
    talk(world)
    real = [
        frame.replace(b"\x01" + name.encode(), b"\x01z", 1)
        for name in "ab" for frame in world.said[name]
    ]  # fmt: skip
    member = world.members["c"]
    for _ in range(600):
        frame = chance.choice((bent(chance, chance.choice(real)), chance.randbytes(60)))
        if chance.random() < 0.9 and frames.name_in(frame) not in world.members:
            frame = signed(frame)  # in the name of a node it could say whatever that may say
        began = time.process_time()
        member.hear(frame)
        assert time.process_time() - began < SECONDS, frame
    assert not member.excluded
    assert len(member.nodes) < 40
    world.wait(CLUSTER_DEAD_SECONDS + 2)  # who was only said to be there is gone
    world.meet()
    assert set(member.nodes) == {"a", "b"}
    reader = world.client("c", "after")
    reader.wish("after")
    world.carry()
    world.publish(world.client("a", "writer-2"), "after", b"!")
    world.carry()
    assert ("after", b"!") in reader.got


def test_what_a_dead_node_said_means_nothing_when_it_is_said_once_more() -> None:
    world = Tapped()
    world.lasting("b", "device", "x")
    writer = world.client("a", "writer")
    world.meet()
    world.say(writer, "x", b"0")
    world.wait(2)
    dead = list(world.said["b"])
    log = world.members["b"]
    world.apart()
    for number in range(1, 4):
        world.say(writer, "x", b"%d" % number)
    for _ in range(3):
        for frame in dead:
            world.members["a"].hear(frame)
        world.wait(1)
    assert world.members["a"].estates["b"].unacknowledged() == 3
    assert log is world.members["b"]
    world.cut.clear()
    world.wait(CLUSTER_DEAD_SECONDS + 2)
    world.meet()
    assert world.waiting("b", "device") == [b"0", b"1", b"2", b"3"]


def test_a_short_frame_is_not_millions_of_messages() -> None:
    world = World()
    world.meet()
    reader, member = world.client("b", "reader"), world.members["b"]
    reader.wish("x")
    node = member.nodes["a"]

    def say(count: int) -> None:
        said = frames.Said(0, "p", b"x", b"x", b"", 0, False, False, b"", count, [], 0, "", False)
        piece = frames.piece(said)
        member.hear(frames.frame("a", node.boot, node.their_life, node.seen + 1, piece))

    say(3)
    assert reader.got == [("x", b"")] * 3
    say(CLUSTER_RUN + 1)
    assert len(reader.got) == 3
    assert sum(member.hearing.refused.values()) == 1
    assert "a" in member.nodes


def test_what_strangers_say_is_not_remembered_word_for_word() -> None:
    world = World()
    world.meet()
    member = world.members["b"]
    now = member.broker.clock.stamp()
    for number in range(5 * REASONS):
        beat = frames.piece(frames.Beat("1", now + (1_000 + number) * 1_000_000))
        member.hear(frames.frame(f"x{number}", 1, 0, 0, beat))
    assert 0 < len(member.hearing.refused) <= REASONS


def of_parts(payload: bytes) -> frames.Said:
    return frames.Said(0, "p", b"w", b"x", b"", 0, False, False, payload, 1, [], 0, "", False)


def with_records(length: int) -> bytes:
    """A payload that is the end of every connection wherever a frame begins, if read from there."""
    data = frames.piece(of_parts(b"A" * length))[4:]
    begins, payload = data.index(b"AAAA"), bytearray(length)
    for at in range(CLUSTER_FRAME_BYTES, begins + length - 100, CLUSTER_FRAME_BYTES):
        record = b"\x93\x09\xa3bye\xc6"  # Shut, and one thing more: all that is left
        record += (len(data) - at - len(record) - 4).to_bytes(4, "big")
        payload[at - begins : at - begins + len(record)] = record
        assert frames.read(record + bytes(len(data) - at - len(record))) == frames.Shut("bye")
    return bytes(payload)


@pytest.mark.parametrize("lost", [(1,), (0,), (0, 1), (2,)])
def test_the_rest_of_a_message_of_which_a_part_was_lost_is_no_record(lost: tuple[int]) -> None:
    """A client may have put one into its message, where the next frame begins."""
    world = World(names=("a", "b"))
    world.meet()
    here, there = world.members["a"], world.members["b"]
    reader = world.client("a", "reader")
    reader.wish("x")
    world.carry()
    ended: list[str | None] = []
    here.shut = ended.append
    payload = with_records(4 * CLUSTER_FRAME_BYTES)
    there.nodes["a"].tell(of_parts(payload))
    world.tick()
    line = world.lines("b").lines["a"]
    assert len(line) == 5
    for at in reversed(lost):
        del line[at]
    world.carry()
    assert not ended and not reader.got and here.hearing.lost == len(lost)
    there.nodes["a"].tell(of_parts(payload))
    world.carry()
    assert reader.got == [("x", payload)], "what comes whole is heard again"
    assert not here.hearing.refused


def test_what_comes_of_a_message_after_its_node_was_met_anew_is_no_record() -> None:
    world = World(names=("a", "b"))
    world.meet()
    here, there = world.members["a"], world.members["b"]
    ended: list[str | None] = []
    here.shut = ended.append
    there.nodes["a"].tell(of_parts(with_records(4 * CLUSTER_FRAME_BYTES)))
    world.tick()
    line = world.lines("b").lines["a"]
    here.hear(line.popleft())
    here.forget(here.nodes["b"], "the test says so")
    beat = frames.piece(frames.Beat("0", world.clock.stamp()))
    here.hear(frames.frame("b", there.boot, 0, 0, beat))
    world.carry()
    assert "b" in here.nodes and not ended
    world.wait(3)
    assert here.nodes["b"].number_there and not here.nodes["b"].asking
