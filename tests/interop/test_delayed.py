"""`$delayed/…` survives `kill -9`, and comes when it is due."""

from __future__ import annotations

import signal
import time

import pytest

from hubbub.protocols.mqtt import codec
from tests.interop.test_crash import connected
from tests.process import StartHub

pytestmark = [pytest.mark.interop, pytest.mark.slow]
DELAY = 3


def test_it_survives_a_crash(start_hub: StartHub) -> None:
    hub = start_hub()
    with connected(hub, "bob") as bob:
        bob.hear_until("CONNACK 0")
        began = time.monotonic()
        bob.publish(f"$delayed/{DELAY}/a/b", b"later", 1, retain=True)
        bob.publish("$delayed/3600/a/c", b"much later", 2)
        hub.stop(signal.SIGKILL)
    hub = start_hub()
    with connected(hub, "ann") as ann:
        ann.say(codec.subscribe(5, [(b"a/#", 1)]))
        heard = ann.hear_until("a/b=later q1 #1")
        assert time.monotonic() - began >= DELAY
        assert [word for word in heard if "=" in word] == ["a/b=later q1 #1"]
    with connected(hub, "cid") as cid:
        cid.say(codec.subscribe(5, [(b"a/#", 0)]))
        cid.hear_until("a/b=later retain")
