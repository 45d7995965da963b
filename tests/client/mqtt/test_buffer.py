"""The file that keeps messages: over restarts, torn writes, compaction, kill -9."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from hubbub.client.mqtt import Message, connect
from hubbub.client.mqtt import buffer as module
from hubbub.client.mqtt.buffer import Buffer, Kept
from hubbub.errors import SettingError
from hubbub.protocols.mqtt import codec
from tests.client.mqtt.transcript import CONNACK, CONNACK_PRESENT, Broker
from tests.process import ROOT, RunningHub

SOON = (0.01, 0.05)
RICH = Message(
    "a", b"\xff\0", 2, True, "text/plain", "re", b"\1", 5, (("k", "v"), ("k", "w")), True
)


async def test_what_was_put_is_there_again(tmp_path: Path) -> None:
    buffer = Buffer(tmp_path / "b")
    await asyncio.gather(*(buffer.put(number, RICH, 7.5) for number in range(3)))
    await buffer.released(1)
    buffer.done(0)
    await buffer.close()
    again = Buffer(tmp_path / "b")
    assert list(again.kept()) == [Kept(1, RICH, 7.5, True), Kept(2, RICH, 7.5, False)]
    assert again.next_number == 3
    await again.close()


async def test_a_torn_tail_is_cut(tmp_path: Path) -> None:
    buffer = Buffer(tmp_path / "b")
    await buffer.put(0, RICH, 0)
    await buffer.close()
    whole = (tmp_path / "b").read_bytes()
    for torn in (whole[:-1], whole + b"\0\0\0\5torn", whole + whole[16:-3]):
        (tmp_path / "b").write_bytes(torn)
        again = Buffer(tmp_path / "b")
        assert len(list(again.kept())) == (0 if len(torn) < len(whole) else 1)
        await again.put(7, RICH, 0)
        await again.close()
        last = Buffer(tmp_path / "b")
        assert [one.number for one in last.kept()][-1] == 7
        await last.close()


async def test_dead_records_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPACT_BYTES", 2_000)
    buffer = Buffer(tmp_path / "b")
    await buffer.put(0, RICH, 0)
    await buffer.released(0)
    for number in range(1, 500):
        await buffer.put(number, Message("a", b"x" * 50, 1), 0)
        buffer.done(number)
    assert (tmp_path / "b").stat().st_size < 10_000
    await buffer.close()
    again = Buffer(tmp_path / "b")
    assert list(again.kept()) == [Kept(0, RICH, 0, True)]
    assert again.next_number == 500, "numbers, and with them packet ids, go on"
    await again.close()


async def test_a_full_buffer_waits(tmp_path: Path) -> None:
    buffer = Buffer(tmp_path / "b", limit=200)
    await buffer.put(0, Message("a", b"x" * 150, 1), 0)
    waiting = asyncio.create_task(buffer.put(1, Message("a", b"y" * 150, 1), 0))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    buffer.done(0)
    await waiting
    await buffer.close()


async def test_the_file_is_one_process_own(tmp_path: Path) -> None:
    buffer = Buffer(tmp_path / "b")
    with pytest.raises(SettingError, match="another process"):
        Buffer(tmp_path / "b")
    await buffer.close()
    (tmp_path / "c").write_text("something else entirely")
    with pytest.raises(SettingError, match="no buffer"):
        Buffer(tmp_path / "c")


async def test_publishing_without_a_broker(tmp_path: Path) -> None:
    async with Broker() as broker:
        await broker.stop()
        options = {"clean": False, "version": 4, "backoff": SOON, "buffer": tmp_path / "b"}
        async with connect(broker.url, "c", **options) as client:  # type: ignore[arg-type]
            for number in range(3):
                await client.publish("a", b"%d" % number, 1 + number % 2)
            assert client.unfinished == 3
        # Another run of the program, and then a broker.
        async with connect(broker.url, "c", **options) as client:  # type: ignore[arg-type]
            await broker.start()
            peer = await broker.peer()
            await peer.accept(CONNACK)
            found = [codec.parse_publish(*await peer.expect(codec.PUBLISH)) for _ in "123"]
            assert [(one.payload, one.packet_id) for one in found] == [
                (b"0", 1),
                (b"1", 2),
                (b"2", 3),
            ]
            peer.say(codec.acknowledgement(codec.PUBACK, 1), codec.acknowledgement(5, 2))
            await peer.expect(codec.PUBREL)
        # Killed between PUBREC and PUBCOMP: the id is released, never published again.
        client = connect(broker.url, "c", **options)  # type: ignore[arg-type]
        opening = asyncio.create_task(client.open())
        peer = await broker.peer()
        await peer.accept(CONNACK_PRESENT)
        assert await peer.expect(codec.PUBREL) == (0x62, b"\0\2")
        again = codec.parse_publish(*await peer.expect(codec.PUBLISH))
        assert (again.payload, again.packet_id, again.dup) == (b"2", 3, True)
        peer.say(codec.acknowledgement(codec.PUBCOMP, 2), codec.acknowledgement(codec.PUBACK, 3))
        await opening
        await client.flush()
        await client.publish("a", b"next", 1)
        assert codec.parse_publish(*await peer.expect(codec.PUBLISH)).packet_id == 4
        await client.close()


PROGRAM = """
import asyncio, sys
from hubbub.client import connect

async def main(url, file, run):
    async with connect(url, client_id="device", clean=False, buffer=file) as client:
        for number in range(100_000):
            await client.publish("k/1", f"{run} {number}", 1 + number % 2)
            print(number, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


def kill_after(count: int, *arguments: str) -> int:
    """Run a program that counts what it published, and kill it there; the last it published."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= count:
            break
    process.send_signal(signal.SIGKILL)
    rest, _ = process.communicate()
    return int([line, *rest.splitlines()][-1])


@pytest.mark.interop
async def test_a_program_that_is_killed_loses_nothing(hub: RunningHub, tmp_path: Path) -> None:
    url, file = hub.url("mqtt"), str(tmp_path / "b")
    heard: Counter[tuple[str, int]] = Counter()
    async with connect(url, "ann", clean=False) as ann:
        await ann.subscribe("k/#", 2)
        last = [
            await asyncio.to_thread(kill_after, 20 * (run + 1), url, file, str(run))
            for run in range(3)
        ]
        async with connect(url, "device", clean=False, buffer=file) as rest:
            await rest.flush()
            await rest.publish("k/end", b"", 2)  # QoS 1 may overtake QoS 2
        async for message in ann.messages():
            if message.topic == "k/end":
                break
            by, number = message.payload.decode().split()
            heard[by, int(number)] += 1
    for run, count in enumerate(last):
        assert {number for one, number in heard if one == str(run)} >= set(range(count))
    assert {times for (_, number), times in heard.items() if number % 2} == {1}, "QoS 2"
