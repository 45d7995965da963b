"""`hubbub serve -c mosquitto.conf`: a hub where mosquitto was, with mosquitto's own clients."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from tests.certificates import Authority
from tests.ports import free_port
from tests.process import ROOT, RunningHub

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(
        shutil.which("mosquitto_pub") is None or shutil.which("mosquitto_passwd") is None,
        reason="no mosquitto_pub and mosquitto_passwd here: apt install mosquitto-clients",
    ),
]
WAIT = 20


class Installation:
    """A folder as mosquitto has it, and the hub that reads it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.secure = free_port(), free_port()
        self.authority = Authority(folder / "tls")
        self.user("ann", "secret")
        (folder / "acl").write_text("user ann\ntopic readwrite a/#\ntopic read $SYS/#\n")
        (folder / "conf.d").mkdir()
        (folder / "conf.d/tls.conf").write_text(
            f"listener {self.secure}\ncertfile {self.authority.sign('localhost', server=True)}\n"
        )
        (folder / "mosquitto.conf").write_text(
            f"pid_file /run/mosquitto.pid\npersistence true\n"
            f"persistence_location {folder}/lib/\npassword_file {folder}/users\n"
            f"acl_file {folder}/acl\nlistener {self.port} 127.0.0.1\ninclude_dir {folder}/conf.d\n"
        )
        command = (sys.executable, "-m", "hubbub", "serve", "-v", "-c", "mosquitto.conf")
        self.log = folder / "hub.log"
        self.hub = subprocess.Popen(
            command,
            cwd=folder,
            env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            text=True,
        )
        assert self.hub.stdout is not None
        self.banner = ""
        while "Try in another terminal" not in self.banner:
            line = self.hub.stdout.readline()
            assert line, self.log.read_text()
            self.banner += line

    def user(self, name: str, password: str) -> None:
        (self.folder / "users").touch()
        command = ("mosquitto_passwd", "-b", str(self.folder / "users"), name, password)
        subprocess.run(command, check=True, timeout=WAIT, capture_output=True)

    def publish(self, *options: str, secure: bool = False) -> int:
        where = ("-h", "127.0.0.1", "-p", str(self.port))
        if secure:
            trust = ("--cafile", str(self.authority.file))
            where = ("-h", "localhost", "-p", str(self.secure), *trust)  # type: ignore[assignment]
        command = ("mosquitto_pub", *where, "-q", "1", *options)
        return subprocess.run(command, timeout=WAIT, capture_output=True).returncode

    def subscribe(self, *options: str) -> str:
        command = ("mosquitto_sub", "-h", "127.0.0.1", "-p", str(self.port), "-W", "10", *options)
        done = subprocess.run(command, timeout=WAIT, capture_output=True, text=True)
        return done.stdout

    def reload(self) -> None:
        """Until it is told, done or not."""
        before = self.log.read_text().count("read the configuration again: ")
        self.hub.send_signal(signal.SIGHUP)
        until = time.monotonic() + WAIT
        while self.log.read_text().count("read the configuration again: ") == before:
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.05)


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    made = Installation(tmp_path)
    yield made
    made.hub.kill()
    made.hub.wait(WAIT)
    assert made.hub.stdout is not None
    made.hub.stdout.close()


ANN = ("-u", "ann", "-P", "secret")


def test_an_installation_of_mosquitto(installation: Installation) -> None:
    publish = installation.publish
    assert "listening on 127.0.0.1:" in installation.banner and "HTTP" not in installation.banner
    assert "over TLS only" in installation.banner
    assert (installation.folder / "lib").is_dir()
    assert "pid_file /run/mosquitto.pid has no effect" in installation.log.read_text()
    assert publish(*ANN, "-t", "a/b", "-m", "kept", "-r") == 0
    assert publish(*ANN, "-t", "a/s", "-m", "safe", "-r", secure=True) == 0
    assert publish("-t", "a/b", "-m", "x") != 0, "nobody without a name"
    assert publish("-u", "ann", "-P", "wrong", "-t", "a/b", "-m", "x") != 0
    publish(*ANN, "-t", "b", "-m", "not allowed", "-r")
    assert installation.subscribe(*ANN, "-t", "#", "-C", "2", "-v") == "a/b kept\na/s safe\n"


def test_the_files_are_read_again(installation: Installation) -> None:
    bob = ("-u", "bob", "-P", "two")
    assert installation.publish(*bob, "-t", "c", "-m", "x", "-r") != 0
    installation.user("bob", "two")
    (installation.folder / "acl").write_text("user bob\ntopic c\n")
    installation.reload()
    assert installation.publish(*bob, "-t", "c", "-m", "x", "-r") == 0
    assert installation.subscribe(*bob, "-t", "c", "-C", "1") == "x\n"
    (installation.folder / "users").write_text("damaged\n")
    installation.reload()
    assert "users:1: expected NAME:HASH" in installation.log.read_text()
    assert installation.publish(*bob, "-t", "c", "-m", "x") == 0, "it goes on with the old"


def test_what_cannot_be_followed_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "mosquitto.conf").write_text("# one\nplugin /usr/lib/dynsec.so\n")
    command = (sys.executable, "-m", "hubbub", "serve", "-c", "mosquitto.conf")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 2
    assert done.stderr.startswith("hubbub: mosquitto.conf:2: plugin /usr/lib/dynsec.so: ")


def run_mosquitto(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """One that keeps its state in that folder, once it answers."""
    (folder / "old.conf").write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence true\n"
        f"persistence_location {folder}/\nuser root\n"
    )
    broker = subprocess.Popen(("mosquitto", "-c", folder / "old.conf"), stderr=subprocess.DEVNULL)
    ask = ("mosquitto_pub", "-p", str(port), "-t", "ready", "-n")
    by = time.monotonic() + WAIT
    while subprocess.run(ask, stderr=subprocess.DEVNULL, timeout=WAIT).returncode:
        assert broker.poll() is None and time.monotonic() < by
        time.sleep(0.05)
    return broker


@pytest.mark.skipif(shutil.which("mosquitto") is None, reason="no mosquitto: apt install mosquitto")
def test_what_mosquitto_left_is_said_and_carried_over(tmp_path: Path) -> None:
    """As docs/migrate/mosquitto.md says it: a bridge to the old broker over the file moved away."""
    old = tmp_path / "old"
    old.mkdir()
    payload = b"line\nends \x00\xff"
    before = run_mosquitto(tmp_path, port := free_port())
    try:
        at = ("-p", str(port), "-q", "1")
        keeper = ("-i", "keeper", "-c", "-t", "alarm/+", "-E")
        keep = ("mosquitto_pub", *at, "-t", "plant/1", "-r", "-s")
        subprocess.run(keep, input=payload, check=True, timeout=WAIT)
        subprocess.run(("mosquitto_sub", *at, *keeper), check=True, timeout=WAIT)
        subprocess.run(("mosquitto_pub", *at, "-t", "alarm/x", "-m", "y"), check=True, timeout=WAIT)
    finally:
        before.terminate()
        before.wait(WAIT)
    file = tmp_path / "mosquitto.conf"
    file.write_text(f"persistence true\npersistence_location {tmp_path}\n")
    command = (sys.executable, "-m", "hubbub", "serve", "-c", str(file))
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT)
    held = "1 retained message, 1 session, 1 subscription, 1 queued message"
    assert done.returncode == 2 and held in done.stderr
    (tmp_path / "mosquitto.db").rename(old / "mosquitto.db")
    after = run_mosquitto(old, port)
    file.write_text(
        f"{file.read_text()}connection old\naddress 127.0.0.1:{port}\ntopic # in 1\n"
    )
    hub = RunningHub(tmp_path, "-c", str(file))
    try:
        mine = hub.address.rpartition(":")[2]
        read = ("mosquitto_sub", "-p", mine, "-t", "plant/#", "-C", "1", "-N", "-W", str(WAIT))
        assert subprocess.run(read, capture_output=True, timeout=WAIT).stdout == payload
    finally:
        hub.stop()
        after.terminate()
        after.wait(WAIT)


def test_the_flags_mean_what_they_mean_there(tmp_path: Path) -> None:
    port = free_port()
    hub = RunningHub(tmp_path / "data", "-p", str(port), "-v")
    try:
        assert hub.address.startswith("127.0.0.1:")
        command = ("mosquitto_pub", "-p", str(port), "-t", "a", "-m", "b")
        assert subprocess.run(command, timeout=WAIT).returncode == 0
    finally:
        hub.stop()


# Side by side: the same file, the same bytes, the same answers


def connect(client: bytes, will: codec.Will | None = None, version: str = "5.0") -> bytes:
    properties = codec.Properties() if version == "5.0" else None
    return codec.connect(client, True, 60, will, properties=properties)


def publish(qos: int, retain: bool = False, version: str = "5.0") -> bytes:
    properties = codec.NO_PROPERTIES if version == "5.0" else b""
    return codec.publish(b"a", b"x", qos, retain, 1 if qos else 0, False, properties)


CONVERSATIONS = {
    "a PUBLISH of QoS 2": (connect(b"c"), publish(2)),
    "a PUBLISH of QoS 1": (connect(b"c"), publish(1)),
    "a SUBSCRIBE with QoS 2": (connect(b"c"), codec.subscribe(1, [(b"a", 2)], codec.NO_PROPERTIES)),
    "a retained PUBLISH": (connect(b"c"), publish(0, True)),
    "a will of QoS 2": (connect(b"c", codec.Will(b"w", b"x", 2, False)),),
    "a retained will": (connect(b"c", codec.Will(b"w", b"x", 0, True)),),
    "before 5.0, a PUBLISH of QoS 2": (
        connect(b"c", version="3.1.1"), publish(2, version="3.1.1"),
    ),
    "before 5.0, a retained PUBLISH": (
        connect(b"c", version="3.1.1"), publish(0, True, version="3.1.1"),
    ),
}  # fmt: skip


def facts(data: bytes, closed: bool) -> list[object]:
    """What was answered: packets with their codes, the two properties this is about, the end."""
    found: list[object] = []
    for start, body, end in codec.packets(data):
        kind = data[start] >> 4
        if kind == codec.CONNACK and end - body > 2:
            answer = codec.parse_answer(kind, data[body:end])
            numbers = answer.properties.numbers
            offered = numbers.get(spec.MAXIMUM_QOS), numbers.get(spec.RETAIN_AVAILABLE)
            found.append(("CONNACK", answer.codes[0], *(offered if not answer.codes[0] else ())))
        elif kind == codec.DISCONNECT:
            found.append(("DISCONNECT", data[body]))
        elif kind == codec.SUBACK:
            found.append(("SUBACK", data[end - 1]))
        else:
            found.append(codec.NAMES[kind])
    return [*found, "closed" if closed else "open"]


def converse(port: int, packets: tuple[bytes, ...]) -> list[object]:
    """Say one packet after the other, and a PINGREQ if the connection is still there."""
    data, closed = b"", False
    with socket.create_connection(("127.0.0.1", port), 5) as sock:
        for packet in (*packets, codec.PINGREQ_PACKET):
            try:
                sock.sendall(packet)
                time.sleep(0.05)
            except OSError:
                closed = True
        sock.settimeout(5)
        while not closed and not data.endswith(codec.PINGRESP_PACKET):
            try:
                piece = sock.recv(4096)
            except ConnectionResetError:
                piece = b""
            data, closed = data + piece, not piece
    return facts(data, closed)


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Callable[[str], int]]:
    """Starts mosquitto with a file; returns its port, which is filled in for PORT."""
    program = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("no mosquitto here: apt install mosquitto")
    running = []

    def start(text: str) -> int:
        port = free_port()
        os.chmod(tmp_path, 0o755)
        file = tmp_path / "there.conf"
        file.write_text(text.replace("PORT", str(port)))
        command = (program, "-c", str(file))
        running.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        until = time.monotonic() + WAIT
        while time.monotonic() < until:
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                return port
            time.sleep(0.05)
        raise AssertionError("mosquitto does not listen")

    yield start
    for process in running:
        process.terminate()
        process.wait(WAIT)


@contextlib.contextmanager
def hub_of(tmp_path: Path, text: str) -> Iterator[int]:
    """A hub with that file; the port that is filled in for PORT."""
    port = free_port()
    file = tmp_path / "here.conf"
    file.write_text(text.replace("PORT", str(port)))
    command = (sys.executable, "-m", "hubbub", "serve", "-c", str(file))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    hub = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert hub.stdout is not None
        while "listening on" not in hub.stdout.readline():
            assert hub.poll() is None
        yield port
    finally:
        hub.send_signal(signal.SIGTERM)
        hub.wait(WAIT)


@pytest.mark.parametrize("option", ["max_qos 1", "max_qos 0", "retain_available false"])
def test_what_is_not_offered_is_refused_as_there(
    option: str, tmp_path: Path, mosquitto: Callable[[str], int]
) -> None:
    first, second = f"{option}\n", ""
    if option.startswith("max_qos"):
        first, second = second, first
    text = f"{first}persistence false\nlistener PORT 127.0.0.1\nallow_anonymous true\n{second}"
    there = mosquitto(text)
    with hub_of(tmp_path, text) as here:
        for name, packets in CONVERSATIONS.items():
            assert converse(here, packets) == converse(there, packets), name


def sized(size: int, qos: int, version: str) -> bytes:
    """A PUBLISH whose payload has so many bytes."""
    properties = codec.NO_PROPERTIES if version == "5.0" else b""
    return codec.publish(b"a", bytes(size), qos, False, 1 if qos else 0, False, properties)


def kept_alive(seconds: int, version: str) -> bytes:
    properties = codec.Properties() if version == "5.0" else None
    return codec.connect(b"c", True, seconds, None, properties=properties)


BOUNDS: dict[str, list[tuple[bytes, ...]]] = {
    "allow_anonymous true\nmessage_size_limit 50": [
        (connect(b"c", version=version), sized(size, qos, version))
        for version in ("3.1.1", "5.0") for size in (50, 51, 200) for qos in (0, 1, 2)
        if version == "3.1.1" or not (size > 50 and qos)  # 0x95, which no PUBACK may have
    ] + [
        (connect(b"c", codec.Will(b"w", bytes(51), 0, False), version),)
        for version in ("3.1.1", "5.0")
    ],
    "allow_anonymous true\nmax_packet_size 60": [
        (connect(b"c", version=version), sized(size, 1, version))
        for version in ("3.1.1", "5.0") for size in (40, 60, 200)
    ],
    "allow_anonymous true\nmax_keepalive 60": [
        (kept_alive(seconds, version),)  # 61 before 5.0 is refused by those after 2.0.11
        for version in ("3.1.1", "5.0") for seconds in (0, 60, 61) if (version, seconds) != (
            "3.1.1", 61)
    ],
    "": [(connect(b"c", version=version),) for version in ("3.1.1", "5.0")],
}  # fmt: skip


@pytest.mark.parametrize("options", BOUNDS, ids=lambda text: text.partition("\n")[2] or "closed")
def test_bounds_hold_as_there(
    options: str, tmp_path: Path, mosquitto: Callable[[str], int]
) -> None:
    """Also far below 128 bytes, and where nobody is let in at all."""
    first = options.partition("\n")[2]
    admission = options.partition("\n")[0]
    text = f"{first}\npersistence false\nlistener PORT 127.0.0.1\n{admission}\n"
    there = mosquitto(text)
    with hub_of(tmp_path, text) as here:
        for packets in BOUNDS[options]:
            ours, theirs = converse(here, packets), converse(there, packets)
            if theirs[-1] == "closed" and len(packets) > 1:  # a reset takes what was not read
                ours, theirs = ours[-1:], theirs[-1:]
            assert ours == theirs, packets


def test_the_chain_is_completed_from_the_cafile(tmp_path: Path) -> None:
    """A certificate of an intermediate authority, and a client that trusts the root only."""
    root = Authority(tmp_path / "root")
    middle = root.authority("Intermediate")
    server = middle.sign("localhost", server=True)
    text = (
        f"persistence false\nlistener PORT 127.0.0.1\nallow_anonymous true\n"
        f"certfile {server}\ncafile {middle.file}\n"
    )
    with hub_of(tmp_path, text) as port:
        where = ("-h", "localhost", "-p", str(port), "--cafile", str(root.file))
        command = ("mosquitto_pub", *where, "-t", "a", "-m", "x", "-q", "1")
        done = subprocess.run(command, timeout=WAIT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
