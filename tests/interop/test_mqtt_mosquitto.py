"""mosquitto_pub and mosquitto_sub against a hub in a process of its own."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.process import RunningHub, StartHub

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(
        shutil.which("mosquitto_pub") is None,
        reason="no mosquitto_pub here: apt install mosquitto-clients",
    ),
]
WAIT = 20
SUBSCRIBE = ("mosquitto_sub", "-F", "%q %r %t %p")


def publish(hub: RunningHub, *options: str, stdin: str | None = None) -> None:
    command = ("mosquitto_pub", "-p", str(hub.port), *options)
    subprocess.run(command, input=stdin, text=True, check=True, timeout=WAIT)


@contextmanager
def subscriber(hub: RunningHub, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`mosquitto_sub`, which prints QoS, retain flag, topic and payload; it is subscribed."""
    # A line at a time: it would keep its words for itself when it talks into a pipe.
    line = ("stdbuf", "-oL", *SUBSCRIBE, "-W", str(WAIT))
    command = (*line, "-p", str(hub.port), "-d", *options)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdout is not None
        try:
            assert any("SUBACK" in line for line in process.stdout), "it was never subscribed"
            yield process
        finally:
            process.kill()


def messages(process: subprocess.Popen[str]) -> list[str]:
    """What it printed until it ended by itself, without its talk about packets."""
    assert process.stdout is not None  # not communicate(): it forgets what was read ahead
    output = process.stdout.read()
    assert process.wait(WAIT) == 0
    return [line for line in output.splitlines() if line[:1].isdigit()]


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311"])
def test_every_qos(hub: RunningHub, version: str) -> None:
    with subscriber(hub, "-V", version, "-t", "a/#", "-q", "2", "-C", "3") as ann:
        for qos in ("0", "1", "2"):
            publish(hub, "-V", version, "-t", "a/b", "-m", f"qos {qos}", "-q", qos)
        assert messages(ann) == ["0 0 a/b qos 0", "1 0 a/b qos 1", "2 0 a/b qos 2"]


def test_a_stream_of_lines(hub: RunningHub) -> None:
    lines = [f"line {number}" for number in range(200)]
    with subscriber(hub, "-t", "a", "-q", "1", "-C", "200") as ann:
        publish(hub, "-t", "a", "-q", "1", "-l", stdin="\n".join(lines) + "\n")
        assert messages(ann) == [f"1 0 a {line}" for line in lines]


def test_retained_is_set_seen_and_cleared(hub: RunningHub) -> None:
    publish(hub, "-t", "r/1", "-m", "one", "-r", "-q", "1")
    publish(hub, "-t", "r/2", "-m", "two", "-r", "-q", "2")
    publish(hub, "-t", "r/1", "-n", "-r", "-q", "1")
    with subscriber(hub, "-t", "r/#", "-q", "2", "-C", "1") as ann:
        assert messages(ann) == ["2 1 r/2 two"]


def test_the_will(hub: RunningHub) -> None:
    with subscriber(hub, "-t", "will", "-C", "1") as ann:
        will = ("--will-topic", "will", "--will-payload", "gone", "--will-qos", "1")
        with subscriber(hub, "-t", "x", *will) as bob:
            bob.kill()
        assert messages(ann) == ["0 0 will gone"]


def test_a_lasting_session_over_kill_9(start_hub: StartHub) -> None:
    hub = start_hub()
    with subscriber(hub, "-i", "ann", "-c", "-t", "a/#", "-q", "2", "-C", "1") as ann:
        publish(hub, "-t", "a/0", "-m", "now", "-q", "2")
        assert messages(ann) == ["2 0 a/0 now"]
    publish(hub, "-t", "a/1", "-m", "later", "-q", "1")
    publish(hub, "-t", "a/2", "-m", "later", "-q", "2")
    hub.stop(signal.SIGKILL)
    hub = start_hub()
    command = (*SUBSCRIBE, "-p", str(hub.port), "-i", "ann", "-c", "-t", "other", "-C", "2")
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT)
    assert done.stdout.splitlines() == ["1 0 a/1 later", "2 0 a/2 later"]
