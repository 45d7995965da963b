"""A service has a request before it is durable: then the disk fails, or the hub is killed."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from hubbub.core.limits import IDS_AHEAD
from tests.interop.faults import Faults
from tests.interop.test_failed_sync import SYNC_FAILS, SYNC_WORKS
from tests.interop.test_switch import Client
from tests.process import RunningHub, StartHub

pytestmark = pytest.mark.interop


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faults:
    """That of the hubs which are started from now on."""
    made = Faults(tmp_path / "faults", tmp_path / "data")
    made.set(SYNC_WORKS)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


class Called:
    """A service, and a caller whose request it has while nothing becomes durable any more."""

    def __init__(self, hub: RunningHub, disk: Faults) -> None:
        self.caller, self.answers = Client(hub, "caller"), Client(hub, "caller")
        self.service, self.hands = Client(hub, "service"), Client(hub, "service")
        self.caller.get("/transient/caller")
        self.caller.get("/persistent/q")
        self.wait(-1)
        self.caller.post("/request/q/caller", b"first")
        ((first, _),) = self.got()
        self.hands.get(f"/ack/q/{first}")
        self.wait(first)
        disk.set(SYNC_FAILS)
        self.ask(b"x")
        ((self.number, payload),) = self.got()
        assert (self.number, payload) == (first + 1, "x")
        self.answer(b"y")

    def wait(self, after: int) -> None:
        wanted = {"from": str(after), "timeout": 30.0, "queues": ["q"]}
        self.post(self.service, "/transfer", json.dumps(wanted).encode())

    def got(self) -> list[tuple[int, str]]:
        status, body = self.service.answer()
        assert status == 200
        return [(number, said["payload"]) for (_, number), said in json.loads(body)["messages"]]

    def ask(self, payload: bytes) -> None:
        self.post(self.caller, "/request/q/caller", payload)

    def answer(self, payload: bytes) -> None:
        self.post(self.hands, f"/response/caller/q/{self.number}", payload)

    def post(self, client: Client, path: str, body: bytes) -> None:
        """Without waiting for the answer."""
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        client.send(head.encode() + body)

    def unanswered(self, *clients: Client) -> None:
        for client in clients:
            client.socket.settimeout(0.3)
            with pytest.raises(TimeoutError):
                client.socket.recv(1)
            client.socket.settimeout(20)


def test_nobody_is_promised_anything_until_the_disk_works_again(
    start_hub: StartHub, disk: Faults
) -> None:
    hub = start_hub()
    called = Called(hub, disk)
    called.post(called.answers, "/transfer", b'{"timeout":30.0,"queues":["caller"]}')
    called.unanswered(called.caller, called.hands, called.answers)
    disk.set(SYNC_WORKS)
    assert called.caller.answer() == (200, b'[["q",%d]]' % called.number)
    assert called.hands.answer() == (200, b'[["caller",0]]')
    _, answer = called.answers.answer()
    assert b'"payload":"y","kind":["Response",["q",%d]]' % called.number in answer
    assert hub.stop() == 0
    client = Client(start_hub(), "caller")
    assert client.post("/request/q/caller", b"z") == b'[["q",%d]]' % (called.number + 1)


def test_what_kill_9_takes_back_is_nobody_elses(start_hub: StartHub, disk: Faults) -> None:
    hub = start_hub()
    called = Called(hub, disk)
    called.unanswered(called.caller, called.hands)
    hub.stop(signal.SIGKILL)
    disk.set(SYNC_WORKS)
    for again in (1, 2):
        hub = start_hub()
        client = Client(hub, "caller")
        ((_, number),) = json.loads(client.post("/request/q/caller", b"another's"))
        assert number >= called.number + again * IDS_AHEAD
        client.get(f"/ack/q/{called.number}")
        client.post(f"/response/caller/q/{called.number}", b"late")
        assert number in dict(client.transfer("q"))
        hub.stop(signal.SIGKILL)
