"""What the journal costs and carries: `python -m benchmarks.journal [PART...]`.

    acks     durable acknowledgements a second through MQTT QoS 1 of 50 producers in this process,
             who speak to the hub's connections without sockets
    commit   durable acknowledgements a second and their latency, beside SQLite (WAL, FULL) and
             JetStream, if there is a nats-server; from 2.10 on, also with its sync on
    start    1,000,000 queued messages of 200 bytes, 1,000,000 retained: memory, time of a start
    record   CPU that recording adds to a QoS 0 message
    roll     the longest stall of the loop while a full segment is folded and compressed

Each part runs in a process of its own, which prints its lines. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import os
import queue
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from hubbub import schema
from hubbub.config.settings import Journal as JournalSettings
from hubbub.config.settings import Listener, Settings
from hubbub.core.clock import Clock
from hubbub.core.retained import NameList
from hubbub.core.state import State, lasting_properties
from hubbub.journal.batch import Batch
from hubbub.journal.writer import Journal
from hubbub.protocols.mqtt import codec
from hubbub.runtime.node import Node
from hubbub.runtime.socket import Socket
from hubbub.schema import PUBLISH, Row

MILLION = 1_000_000
PAYLOAD = 200
PRODUCERS = 50


def resident() -> int:
    """Bytes of memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def journal(folder: Path, fold: Callable[[Batch], None] = lambda batch: None) -> Iterator[Journal]:
    """A journal whose groups are taken in by `take_in`."""
    durable: queue.SimpleQueue[int] = queue.SimpleQueue()
    made = Journal(folder, Clock(), "disk", durable.put)
    made.recover(fold)
    made.take_in = lambda: made.arrived(durable.get(timeout=60))  # type: ignore[attr-defined]
    yield made
    made.close()


# acks


class Producer(asyncio.Transport):
    """An MQTT client and its wire: always `window` publishes without an answer."""

    def __init__(self, node: Node, number: int, window: int) -> None:
        super().__init__()
        self.node, self.window = node, window
        self.packet_ids = itertools.cycle(range(1, 65_536))
        self.topic = b"plant/%d" % number
        self.sent: deque[float] = deque()
        self.times = array("d")  # not a list: looking for garbage in it would be measured, too
        self.welcome = self.over = False
        self.heard_by = cast(asyncio.Protocol, Socket(node.listeners[0]))
        self.heard_by.connection_made(self)
        self.heard_by.data_received(codec.connect(b"producer-%d" % number, True, 0))

    def publish(self, count: int) -> None:
        now = time.perf_counter()
        ids = itertools.islice(self.packet_ids, count)
        image = b"".join(codec.publish(self.topic, bytes(PAYLOAD), 1, False, one) for one in ids)
        self.sent.extend([now] * count)
        self.heard_by.data_received(image)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.heard_by = cast(asyncio.Protocol, protocol)

    def write(self, data: bytes) -> None:  # type: ignore[override]
        """Answers of the hub: a CONNACK, then PUBACKs of four bytes."""
        if not self.welcome:
            self.welcome = True
            return
        now, count = time.perf_counter(), len(data) >> 2
        self.times.extend(now - self.sent.popleft() for _ in range(count))
        if not self.over:
            self.node._loop.call_soon(self.publish, count)

    def writelines(self, data: Iterable[bytes]) -> None:  # type: ignore[override]
        self.write(b"".join(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 4711)

    def nothing(self, *_: object, **__: object) -> None: ...

    close = abort = pause_reading = resume_reading = set_write_buffer_limits = nothing


async def acks(folder: Path, seconds: float = 4.0) -> None:
    for window in (1, 20):
        settings = Settings(data=str(folder / str(window)), listen=("127.0.0.1:0",))
        async with Node(settings) as node:
            producers = [Producer(node, number, window) for number in range(PRODUCERS)]
            await asyncio.sleep(0.1)
            gc.collect()
            gc.freeze()  # as the server does
            spent = time.process_time()
            for producer in producers:
                producer.publish(window)
            await asyncio.sleep(seconds)
            spent = time.process_time() - spent
            times = [one for producer in producers for one in producer.times]
            _report(f"MQTT QoS 1, window {window}", times, seconds)
            assert node.journal is not None
            print(f"{'':28} {spent / len(times) * 1e6:.1f} µs of CPU each, groups of "
                  f"{node.journal.pulse.group_rows():.0f}")  # fmt: skip
            for producer in producers:
                producer.over = True
            await asyncio.sleep(0.3)


# commit


async def commit(folder: Path) -> None:
    """50 producers, each waits for its acknowledgement; a group is what came during a sync."""
    await _commit_ours(folder / "ours")
    await _commit_sqlite(folder / "sqlite.db")
    await _commit_jetstream(folder / "nats")


async def _produce(append: Callable[[bytes], asyncio.Future[None]], seconds: float) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + seconds

    async def producer() -> None:
        while (start := time.perf_counter()) < end:
            await append(bytes(PAYLOAD))
            times.append(time.perf_counter() - start)

    await asyncio.gather(*(producer() for _ in range(PRODUCERS)))
    return times


def _report(name: str, times: list[float], seconds: float) -> None:
    times.sort()
    p50, p99 = times[len(times) // 2] * 1000, times[int(len(times) * 0.99)] * 1000
    print(f"{name:28} {len(times) / seconds:10,.0f}/s   p50 {p50:6.2f} ms   p99 {p99:6.2f} ms")


async def _commit_ours(folder: Path, seconds: float = 4.0) -> None:
    loop = asyncio.get_running_loop()
    waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def arrived(seq: int) -> None:
        made.arrived(seq)
        while waiting and waiting[0][0] <= made.durable:
            waiting.popleft()[1].set_result(None)
        made.commit()

    made = Journal(folder, Clock(), "disk", lambda seq: _soon(loop, arrived, seq))
    made.recover(lambda batch: None)

    def append(payload: bytes) -> asyncio.Future[None]:
        done = loop.create_future()
        waiting.append(
            (made.append(Row(0, 0, PUBLISH, b"mqtt", b"c", b"a/b", payload=payload)), done)
        )
        if made.pending == 1:
            loop.call_soon(made.commit)
        return done

    _report("hubbub journal", await _produce(append, seconds), seconds)
    await asyncio.sleep(0.1)
    made.close()


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[int], None], seq: int) -> None:
    loop.call_soon_threadsafe(call, seq)


async def _commit_sqlite(path: Path, seconds: float = 4.0) -> None:
    loop = asyncio.get_running_loop()
    store = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    store.execute("PRAGMA journal_mode = WAL")
    store.execute("PRAGMA synchronous = FULL")
    store.execute("CREATE TABLE log (seq INTEGER PRIMARY KEY, topic TEXT, payload BLOB)")
    waiting: list[tuple[bytes, asyncio.Future[None]]] = []
    busy = False

    def write(rows: list[bytes]) -> None:
        store.execute("BEGIN")
        store.executemany(
            "INSERT INTO log (topic, payload) VALUES ('a/b', ?)", [(r,) for r in rows]
        )
        store.execute("COMMIT")

    async def flush() -> None:
        nonlocal busy, waiting
        while waiting:
            group, waiting = waiting, []
            await loop.run_in_executor(None, write, [payload for payload, _ in group])
            for _, done in group:
                done.set_result(None)
            await asyncio.sleep(0)
        busy = False

    tasks: set[asyncio.Task[None]] = set()

    def append(payload: bytes) -> asyncio.Future[None]:
        nonlocal busy
        done = loop.create_future()
        waiting.append((payload, done))
        if not busy:
            busy = True
            task = asyncio.ensure_future(flush())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        return done

    _report("SQLite, WAL, FULL", await _produce(append, seconds), seconds)
    store.close()


async def _commit_jetstream(folder: Path) -> None:
    server = shutil.which("nats-server")
    if server is None:
        print(f"{'NATS JetStream':28} not measured: no nats-server on the path")
        return
    said = subprocess.run([server, "--version"], capture_output=True, text=True).stdout
    major, minor, *_ = (int(number) for number in re.findall(r"\d+", said))
    await _commit_nats(server, folder / "unsynced", "", "NATS JetStream, no sync")
    if (major, minor) >= (2, 10):
        await _commit_nats(server, folder / "synced", "always", "NATS JetStream, sync always")
    else:
        print(f"{'NATS JetStream, sync always':28} not measured: needs 2.10 (Debian 13), is {said}")


async def _commit_nats(
    server: str, folder: Path, interval: str, name: str, seconds: float = 4.0
) -> None:
    port = _free_port()
    folder.mkdir(parents=True)
    settings = folder / "nats.conf"
    sync = f", sync_interval: {interval}" if interval else ""
    settings.write_text(
        f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{folder}"{sync} }}\n'
    )
    process = subprocess.Popen([server, "-c", settings], stderr=subprocess.DEVNULL)
    try:
        reader, writer = await _dial(port)
        writer.write(b'CONNECT {"verbose":false}\r\nSUB reply.* 1\r\n')
        stream = b'{"name":"LOG","subjects":["log"],"storage":"file"}'
        _publish(writer, b"$JS.API.STREAM.CREATE.LOG", b"reply.0", stream)
        await asyncio.sleep(0.5)
        waiting: dict[int, asyncio.Future[None]] = {}
        listening = asyncio.create_task(_acknowledge(reader, waiting))
        count = 0

        def append(payload: bytes) -> asyncio.Future[None]:
            nonlocal count
            count += 1
            waiting[count] = asyncio.get_running_loop().create_future()
            _publish(writer, b"log", b"reply.%d" % count, payload)
            return waiting[count]

        _report(name, await _produce(append, seconds), seconds)
        listening.cancel()
        writer.close()
    finally:
        process.terminate()
        process.wait()


async def _dial(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _publish(writer: asyncio.StreamWriter, subject: bytes, reply: bytes, payload: bytes) -> None:
    writer.write(b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload))


async def _acknowledge(
    reader: asyncio.StreamReader, waiting: dict[int, asyncio.Future[None]]
) -> None:
    """Each answer is MSG reply.N 1 SIZE, and a line of JSON."""
    while line := await reader.readline():
        if line.startswith(b"MSG"):
            done = waiting.pop(int(line.split()[1][6:]), None)
            assert b"error" not in await reader.readline()
            if done is not None:
                done.set_result(None)


# start


def start(folder: Path) -> None:
    """Queued and retained messages, written, then started with."""
    for name, fill in (("queued", _queued_rows), ("retained", _retained_rows)):
        path = folder / name
        subprocess.run([sys.executable, "-m", __spec__.name, "fill", str(path), name], check=True)
        subprocess.run([sys.executable, "-m", __spec__.name, "open", str(path), name], check=True)
        assert fill is not None


def _queued_rows() -> Iterator[Row]:
    """Ten sessions that are away, 100,000 messages for each."""
    for number in range(10):
        client = b"device-%d" % number
        yield Row(0, 0, schema.CONNECT, b"mqtt", client, properties=lasting_properties(3600))
        yield Row(0, 0, schema.SUBSCRIBE, b"mqtt", client, b"to/%d/#" % number, qos=1)
    for number in range(10):
        audience = b'[["mqtt","device-%d",1]]' % number
        yield Row(0, 0, schema.AUDIENCE, payload=audience)
    for number in range(MILLION):
        topic = b"to/%d/x" % (number % 10)
        yield Row(
            0, 0, PUBLISH, b"mqtt", b"source", topic, qos=1, payload=_payload(number),
            ref=21 + number % 10,
        )  # fmt: skip


def _retained_rows() -> Iterator[Row]:
    """Their names come in no order."""
    for number in range(MILLION):
        topic = b"site/%d/machine/%d/state" % (number % 100, number * 7919 % MILLION)
        yield Row(
            0, 0, PUBLISH, b"mqtt", b"source", topic, qos=1, retain=True, payload=_payload(number)
        )


def _payload(number: int) -> bytes:
    return b"%0*d" % (PAYLOAD, number)


ROWS = {"queued": _queued_rows, "retained": _retained_rows}


def fill(folder: Path, name: str) -> None:
    """Write the rows as a hub does, and say what state and journal take of memory."""
    state = State()
    with journal(folder) as made:
        # One segment, for a start as long as it can be: nothing is folded yet.
        made._segment_bytes = 1 << 40
        before = resident()
        started = time.perf_counter()
        for number, row in enumerate(ROWS[name](), 1):
            seq = made.append(row)
            state.apply(row._replace(seq=seq))
            if number % 1000 == 0:
                made.commit()
                made.take_in()  # type: ignore[attr-defined]
        seconds = time.perf_counter() - started
        each = (resident() - before) / MILLION
        print(
            f"{name:28} {each:6.0f} bytes of memory each, {MILLION / seconds:,.0f} rows/s written"
        )


def open_(folder: Path, name: str) -> None:
    before = resident()
    state = State()
    gc.disable()  # as the node does
    started, spent = time.perf_counter(), time.process_time()
    with journal(folder, state.fold):
        seconds = time.perf_counter() - started
        rate = MILLION / (time.process_time() - spent)
        used = resident() - before
    print(
        f"{name:28} starts in {seconds:.1f} s, {rate:,.0f} rows a second of CPU, "
        f"{used / 1e6:,.0f} MB of memory"
    )
    if state.retained:
        before, spent = resident(), time.process_time()
        names = NameList(state.retained)
        spent, used = time.process_time() - spent, resident() - before
        print(f"{'':28} and {spent:.1f} s, {used / len(names):.0f} bytes each for their names")


# record and roll


async def record(folder: Path) -> None:
    """The CPU time of recording runs of 20 QoS 0 messages, frames, writes and syncs included."""
    from hubbub.core.message import Run
    from hubbub.core.rights import Rights
    from hubbub.core.route import Route
    from hubbub.core.session import Silent
    from hubbub.protocols.mqtt.dialect import PLAIN

    sender, route = Silent("mqtt", "c", Rights()), Route("a/b", 0)
    encoding = PLAIN.encodings(0, False, ())[0]
    image = b"".join(codec.publish(b"a/b", bytes(64), 0) for _ in range(20))
    gc.freeze()  # as the server does
    with journal(folder) as made:
        started = time.process_time()
        for _ in range(20_000):
            made.append_run(Run(sender, route, 0, 20, encoding, image), 0)
            if made.due(0.0) and not made.flying:
                made.commit()
                made.take_in()  # type: ignore[attr-defined]
        spent = time.process_time() - started
    print(f"{'recording QoS 0':28} {spent / 400_000 * 1e6:6.2f} µs of CPU a message, all included")


async def roll(folder: Path) -> None:
    """Writes more than a segment and looks how late the loop is, every millisecond."""
    settings = Settings(
        data=str(folder), listen=(), listener=(Listener(address="127.0.0.1:0"),),
        journal=JournalSettings(segment_bytes=64 << 20),
    )  # fmt: skip
    worst = busiest = 0.0
    async with Node(settings) as node:
        gc.collect()
        gc.freeze()  # as the server does
        made = node.journal
        assert made is not None
        end = time.perf_counter() + 20
        while time.perf_counter() < end:
            for number in range(20):
                made.append(
                    Row(0, 0, PUBLISH, b"mqtt", b"c", b"r/%d" % (made.position % 5000), qos=1,
                        retain=True, payload=bytes(1000 + number))
                )  # fmt: skip
            node.schedule()
            before, worked = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0.001)
            worst = max(worst, time.perf_counter() - before - 0.001)
            busiest = max(busiest, time.thread_time() - worked)
        print(f"{'rolling':28} the loop was {worst * 1000:.1f} ms late at worst and "
              f"computed {busiest * 1000:.1f} ms at most, {len(made.directory.segments())} "
              f"segments, {len(made.directory.snapshots())} snapshots")  # fmt: skip


PARTS: dict[str, Callable[[Path], object]] = {
    "acks": acks, "commit": commit, "start": start, "record": record, "roll": roll,
}  # fmt: skip


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["fill"]:
        fill(Path(arguments[1]), arguments[2])
        return
    if arguments[:1] == ["open"]:
        open_(Path(arguments[1]), arguments[2])
        return
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.journal", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="BENCH_DIR in the environment: a directory on the disk to measure.",
    )  # fmt: skip
    parser.add_argument("part", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} [all]")
    wanted = parser.parse_args(arguments).part
    for name in wanted:
        if name not in PARTS:
            parser.error(f"there is no part {name!r}; there are {', '.join(PARTS)}")
    for name in wanted or PARTS:
        with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
            part = PARTS[name](Path(folder) / "data")
            if asyncio.iscoroutine(part):
                asyncio.run(part)


if __name__ == "__main__":
    main(sys.argv[1:])
