"""What `-v` shows: who subscribes, publishes, gets it and goes; of some clients only, if asked."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hubbub.client import blocking
from hubbub.core.hooks import Hooks
from hubbub.core.message import Run
from hubbub.protocols.mqtt import codec
from hubbub.runtime.trace import RECEIVERS, Trace
from tests.process import StartHub
from tests.protocols.mqtt.conversation import Stage


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [one.getMessage() for one in caplog.records if one.name == "hubbub.trace"]
    caplog.clear()
    return found


@pytest.fixture
def stage(caplog: pytest.LogCaptureFixture) -> Stage:
    caplog.set_level("DEBUG")
    return Stage()


def test_what_clients_do_is_shown(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    Trace(stage.broker).switch(True)
    viewer, sensor = stage.device("viewer"), stage.device("sensor")
    viewer.subscribe("house/#", 1)
    sensor.publish("house/t", b"21.5", 1, True)
    viewer.say(codec.unsubscribe(6, [b"house/#"]))
    viewer.far.hang_up("lost")
    who = "a client without a user name (client 'viewer')"
    said = [line.partition(" [")[0] for line in lines(caplog)]
    assert said == [
        f"{who} subscribes to 'house/#' with QoS 1",
        "'sensor' publishes 'house/t' with QoS 1, to be retained, 4 bytes",
        "'viewer' gets 'house/t' with QoS 1, to be retained, 4 bytes",
        f"{who} unsubscribes from 'house/#'",
        f"{who} is gone: lost",
    ]


def test_of_some_clients_only(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """Both what they say and what they get; the patterns may change while it is on."""
    trace = Trace(stage.broker, ("view*",))
    trace.switch(True)
    viewer, sensor = stage.device("viewer"), stage.device("sensor")
    for device in (viewer, sensor):
        device.subscribe("a", 0)
    lines(caplog)
    sensor.publish("a")
    assert lines(caplog) == ["'viewer' gets 'a' with QoS 0, 1 bytes"]
    trace.clients = ("sensor",)
    sensor.publish("a")
    found = lines(caplog)
    assert [one.partition("'a'")[0] for one in found] == ["'sensor' publishes ", "'sensor' gets "]


def test_switched_off_nothing_of_it_is_there(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    trace = Trace(stage.broker)
    for on in (True, True, False, False):
        trace.switch(on)
    assert stage.broker.inspector is None and stage.broker.watcher is None
    stage.device("ann").publish("a")
    assert lines(caplog) == []


def test_who_inspects_messages_does_so_still(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    class Program(Hooks):
        lost: list[str] = []

        def passes(self, run: Run) -> bool:
            return run.route.name != "secret"

        def undelivered(self, run: Run) -> None:
            self.lost.append(run.route.name)

    inspector = stage.broker.inspector = Program()
    trace = Trace(stage.broker)
    trace.switch(True)
    ann = stage.device("ann")
    ann.publish("secret")
    ann.publish("a")
    assert len(lines(caplog)) == 1 and inspector.lost == ["a"]
    trace.switch(False)
    assert stage.broker.inspector is inspector


def test_many_receivers_and_long_names_make_few_and_short_lines(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    Trace(stage.broker).switch(True)
    name = "a/" * 90 + "b" * 9_000
    for number in range(RECEIVERS + 3):
        stage.device(f"d{number}").subscribe("#", 0)
    lines(caplog)
    stage.device("ann").publish(name)
    found = lines(caplog)
    assert len(found) == RECEIVERS + 2 and found[-1] == "and 3 more get it"
    assert all(len(one) < 300 for one in found)


def until(found: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not found():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.interop
def test_a_hub_that_runs_is_switched_by_a_signal(tmp_path: Path, start_hub: StartHub) -> None:
    hub = start_hub()
    file = tmp_path / "hub.log"

    def publish(topic: str) -> None:
        with blocking.connect(hub.url("mqtt"), client_id="sensor") as client:
            client.publish(topic, b"x", qos=1)

    publish("before")
    hub.process.send_signal(signal.SIGUSR1)
    until(lambda: "what clients do is shown" in file.read_text())
    publish("shown")
    until(lambda: "publishes 'shown'" in file.read_text())
    hub.process.send_signal(signal.SIGUSR1)
    until(lambda: "not shown any more" in file.read_text())
    publish("after")
    assert hub.stop() == 0
    text = file.read_text()
    assert "'before'" not in text and "'after'" not in text
    assert "(client 'sensor') is gone" in text


@pytest.mark.interop
def test_verbose_and_one_line_for_all_connections_at_the_stop(
    tmp_path: Path, start_hub: StartHub
) -> None:
    hub = start_hub("-v")
    clients = [blocking.connect(hub.url("mqtt"), client_id=f"c{n}") for n in range(5)]
    for client in clients:
        client.__enter__()
    assert hub.stop() == 0
    said = (tmp_path / "hub.log").read_text()
    assert "stopping: closing 5 connections" in said
    assert "closed: the hub is stopping" not in said
    assert said.count(" is gone: ") == 5, "-v shows each"
