"""Bridges to Debian's mosquitto and to another hub: what crosses, once, and what waits."""

from __future__ import annotations

import getpass
import itertools
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.process import RunningHub, StartHub

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("mosquitto") is None or shutil.which("mosquitto_pub") is None,
        reason="no mosquitto here: apt install mosquitto mosquitto-clients",
    ),
]
WAIT = 20
TOPICS = ("up/# out 2 '' far/", "down/# in 2 '' far/", "both/# both 1")


class Mosquitto:
    """A real one on a port of the loopback; it keeps what it knows in its folder."""

    def __init__(self, folder: Path, *lines: str) -> None:
        folder.mkdir()
        self.port = free_port()
        self.config = folder / "mosquitto.conf"
        settings = [f"listener {self.port} 127.0.0.1", "allow_anonymous true", *lines]
        settings += [
            f"user {getpass.getuser()}",
            "persistence true",
            f"persistence_location {folder}/",
        ]
        self.config.write_text("\n".join(settings) + "\n")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            ("mosquitto", "-c", str(self.config)), stderr=subprocess.DEVNULL
        )
        eventually(self._listens)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(WAIT)
            self.process = None


def eventually(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < until, "it never came to pass"
        time.sleep(0.05)


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    broker = Mosquitto(tmp_path / "mosquitto")
    broker.start()
    yield broker
    broker.stop()


Bridged = Callable[..., RunningHub]


@pytest.fixture
def bridged(start_hub: StartHub, tmp_path: Path) -> Bridged:
    """Start a hub with a bridge to that port; further settings of the bridge as TOML lines."""

    def start(port: int, *lines: str, topics: tuple[str, ...] = TOPICS) -> RunningHub:
        file = tmp_path / "hub.toml"
        table = ["[[bridge]]", 'name = "far"', f'addresses = ["localhost:{port}"]', *lines]
        wanted = ", ".join(f'"{topic}"' for topic in topics)
        file.write_text("\n".join([*table, f"topics = [{wanted}]"]) + "\n")
        return start_hub("--config", str(file))

    return start


def wait_for(hub: RunningHub, up: bool) -> None:
    """Until the bridge says that of itself."""
    sub = ("mosquitto_sub", "-p", str(hub.port), "-t", "$SYS/broker/connection/far/state")
    with subprocess.Popen(("stdbuf", "-oL", *sub), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any(line.strip() == str(int(up)) for line in process.stdout)
        process.kill()


def publish(port: int, topic: str, *options: str) -> None:
    command = ("mosquitto_pub", "-p", str(port), "-t", topic, *options)
    subprocess.run(command, check=True, timeout=WAIT)


class Ear:
    """`mosquitto_sub` on that port; it is subscribed."""

    def __init__(self, port: int, topic_filter: str, *options: str) -> None:
        self.process = subprocess.Popen(
            (
                "stdbuf", "-oL", "mosquitto_sub", "-d", "-p", str(port), "-t", topic_filter,
                "-q", "2", "-F", "%q %r %t %p", *options,
            ),
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self._early = []  # a session that comes back hears before it is subscribed again
        for line in self.process.stdout:
            if "Subscribed" in line:
                break
            self._early.append(line)

    def hear_until(self, last: str) -> list[str]:
        """The messages up to the one with that payload, without the last."""
        assert self.process.stdout is not None
        heard = []
        for line in itertools.chain(self._early, self.process.stdout):
            if line.rstrip().endswith(" " + last):
                break
            if line[:1].isdigit():
                heard.append(line.rstrip())
        self.process.kill()
        self.process.wait(WAIT)
        self.process.stdout.close()
        return heard


def in_order(lines: list[str]) -> list[str]:
    """MQTT keeps the order of messages of one QoS only (4.6)."""
    return sorted(lines, key=lambda line: line[0])


@pytest.mark.parametrize("version", ["5.0", "3.1.1"])
def test_what_crosses_crosses_once(mosquitto: Mosquitto, bridged: Bridged, version: str) -> None:
    hub = bridged(mosquitto.port, f'version = "{version}"')
    wait_for(hub, True)
    for here, there, published, heard in (
        (hub.port, mosquitto.port, "up/a", "far/up/a"),
        (mosquitto.port, hub.port, "far/down/a", "down/a"),
        (hub.port, mosquitto.port, "both/a", "both/a"),
        (mosquitto.port, hub.port, "both/a", "both/a"),
    ):
        ear, own = Ear(there, heard), Ear(here, published)
        for qos in ("0", "1", "2", "1"):
            publish(here, published, "-q", qos, "-m", f"qos {qos}")
        publish(here, published, "-m", "end", "-q", "2")  # the others cannot be behind it
        most = 1 if published.startswith("both") else 2
        expected = [f"{min(most, qos)} 0 {heard} qos {qos}" for qos in (0, 1, 2, 1)]
        assert sorted(ear.hear_until("end")) == sorted(expected)
        assert len(own.hear_until("end")) == 4, "none of it came back"


def test_a_broker_that_is_away(mosquitto: Mosquitto, bridged: Bridged) -> None:
    """What is published meanwhile waits, also over kill -9 of the hub, and arrives once."""
    hub = bridged(mosquitto.port)
    wait_for(hub, True)
    mosquitto.stop()
    wait_for(hub, False)
    for number in range(10):
        publish(hub.port, "up/n", "-q", str(1 + number % 2), "-m", str(number))
    hub.stop(signal.SIGKILL)
    hub = bridged(mosquitto.port)
    publish(hub.port, "up/n", "-q", "1", "-m", "after the crash")
    mosquitto.start()
    ear = Ear(mosquitto.port, "far/#")
    publish(hub.port, "up/n", "-q", "2", "-m", "end")
    expected = [f"{1 + number % 2} 0 far/up/n {number}" for number in range(10)]
    expected.append("1 0 far/up/n after the crash")
    assert in_order(ear.hear_until("end")) == in_order(expected)


def test_a_hub_that_is_away(mosquitto: Mosquitto, bridged: Bridged) -> None:
    """The broker keeps the session of the bridge; what it acknowledges to it is durable here."""
    hub = bridged(mosquitto.port)
    wait_for(hub, True)
    command = ("mosquitto_sub", "-p", str(hub.port), "-c", "-i", "ann", "-q", "2", "-E")
    subprocess.run((*command, "-t", "down/#"), check=True, timeout=WAIT)
    hub.stop(signal.SIGKILL)
    for number in range(10):
        publish(mosquitto.port, "far/down/n", "-q", str(1 + number % 2), "-m", str(number))
    hub = bridged(mosquitto.port)
    wait_for(hub, True)
    publish(mosquitto.port, "far/down/n", "-q", "2", "-m", "end")
    ear = Ear(hub.port, "down/#", "-c", "-i", "ann")
    heard = in_order(ear.hear_until("end"))
    assert heard == in_order([f"{1 + number % 2} 0 down/n {number}" for number in range(10)])
    assert hub.stop() == 0


@pytest.mark.parametrize("taken_over", [False, True])
def test_retained_messages_cross_with_their_flag(
    mosquitto: Mosquitto, bridged: Bridged, taken_over: bool
) -> None:
    if taken_over:  # the session that a bridge of that name has left
        sub = ("mosquitto_sub", "-p", str(mosquitto.port), "-c", "-i", "taken", "-q", "2", "-E")
        subprocess.run((*sub, "-t", "far/down/#"), check=True, timeout=WAIT)
    publish(mosquitto.port, "far/down/r", "-r", "-m", "before")  # of QoS 0 none waits there
    hub = bridged(mosquitto.port, 'client_id = "taken"')
    wait_for(hub, True)
    publish(hub.port, "up/r", "-r", "-q", "1", "-m", "after")
    command = ("mosquitto_sub", "-F", "%r %t %p", "-C", "1", "-W", str(WAIT))
    for port, topic, said in (
        (hub.port, "down/r", "1 down/r before\n"),
        (mosquitto.port, "far/up/r", "1 far/up/r after\n"),
    ):
        # It may arrive live or be there already; then it is asked for once more.
        subprocess.run((*command, "-p", str(port), "-t", topic), timeout=2 * WAIT, check=True)
        done = subprocess.run(
            (*command, "-p", str(port), "-t", topic), capture_output=True, text=True, check=True
        )
        assert done.stdout == said


def test_hub_to_hub(start_hub: StartHub, bridged: Bridged, tmp_path: Path) -> None:
    far = start_hub(data=tmp_path / "far")
    hub = bridged(far.port)
    wait_for(hub, True)
    ear, own = Ear(far.port, "both/#"), Ear(hub.port, "both/#")
    publish(hub.port, "both/a", "-q", "2", "-m", "x")
    publish(hub.port, "both/a", "-q", "1", "-m", "end")
    assert ear.hear_until("end") == ["1 0 both/a x"]
    assert own.hear_until("end") == ["2 0 both/a x"]
    ear = Ear(hub.port, "down/#")
    publish(far.port, "far/down/a", "-q", "2", "-m", "y")
    publish(far.port, "far/down/a", "-q", "2", "-m", "end")
    assert ear.hear_until("end") == ["2 0 down/a y"]


def test_a_bridge_of_mosquitto_to_a_hub(hub: RunningHub, tmp_path: Path) -> None:
    """It says "bridge" in the protocol level, and is not sent what it published."""
    wanted = ("connection c", f"address 127.0.0.1:{hub.port}", "topic both/# both 1")
    broker = Mosquitto(tmp_path / "bridging", *wanted)
    broker.start()
    try:
        ear, own = Ear(hub.port, "both/#"), Ear(broker.port, "both/#")
        eventually(lambda: crossed(broker.port, hub.port))
        publish(broker.port, "both/a", "-q", "2", "-m", "x")
        publish(broker.port, "both/a", "-q", "2", "-m", "end")
        for heard in (ear.hear_until("end"), own.hear_until("end")):
            assert [line for line in heard if line.endswith(" x")] == [heard[-1]]
    finally:
        broker.stop()


def crossed(here: int, there: int) -> bool:
    """Whether a message published here arrives there within a second."""
    publish(here, "both/up", "-m", "?", "-r")
    command = ("mosquitto_sub", "-p", str(there), "-t", "both/up", "-C", "1", "-W", "1")
    return subprocess.run(command, capture_output=True, timeout=WAIT).returncode == 0


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for localhost that is its own authority."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        (
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-keyout", str(key), "-out", str(certificate), "-days", "2",
            "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
        ),
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")
def test_over_tls(bridged: Bridged, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    plain = f"certfile {certificate}\nkeyfile {key}"
    broker = Mosquitto(tmp_path / "tls", plain, "log_type error")
    broker.start()
    try:
        hub = bridged(broker.port, "tls = true", f'ca = "{certificate}"')
        wait_for(hub, True)
        hub.stop()
        hub = bridged(broker.port, "tls = true")  # nobody vouches for it
        log = tmp_path / "hub.log"
        eventually(lambda: "certificate verify failed" in log.read_text())
    finally:
        broker.stop()


def test_a_mosquitto_that_bridges_into_a_hub_says_its_state_there(
    hub: RunningHub, tmp_path: Path
) -> None:
    """Retained, and taken back by its will when it is killed: a central hub shows its edges."""
    edge = Mosquitto(
        tmp_path / "edge", "connection up", f"address 127.0.0.1:{hub.port}", "topic up/# out 1",
        "remote_clientid edge-1", "restart_timeout 1",
    )  # fmt: skip
    name = "$SYS/broker/connection/edge-1/state"

    def state() -> str:
        command = ("mosquitto_sub", "-p", str(hub.port), "-t", name, "-C", "1", "-W", "2", "-v")
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT)
        return done.stdout.strip()

    edge.start()
    try:
        eventually(lambda: state() == f"{name} 1")
        assert edge.process is not None
        edge.process.kill()
        edge.process.wait(WAIT)
        eventually(lambda: state() == f"{name} 0")
    finally:
        edge.stop()
