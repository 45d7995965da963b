"""To whom it is put down what a client takes: a user name that nobody checked is not one."""

from __future__ import annotations

from pathlib import Path

import pytest

from hubbub.auth.gate import Gates
from hubbub.auth.passwords import add_user
from hubbub.config.settings import Listener
from hubbub.core.broker import Broker
from hubbub.core.clock import Clock
from hubbub.core.gate import Admission, Gate, Opening
from hubbub.core.limits import SHARE
from hubbub.core.log import Log
from hubbub.core.quotas import POOLS
from hubbub.core.session import Silent
from hubbub.protocols.mqtt import codec
from tests.protocols.mqtt.conversation import Stage


def admitted(gate: Gate, user: str, secret: bytes = b"", address: str = "10.0.0.1") -> Admission:
    found: list[Admission | None] = []
    Opening(gate, address, 1).ask("c", user, secret, lambda one, reason: found.append(one))
    assert found[0] is not None
    return found[0]


def session(broker: Broker, gate: Gate, user: str, address: str = "10.0.0.1") -> Silent:
    admission = admitted(gate, user, address=address)
    one = Silent("mqtt", f"{user}@{address}", admission.rights)
    broker.connect(one, admission)
    return one


def open_gates() -> list[Gate]:
    broker = Broker(Clock(), Log(Clock()), "none")
    listener = Listener(address="127.0.0.1:0", allow_anonymous=True)
    return [Gate(broker.open), Gates(broker.open).gate(listener)]


@pytest.mark.parametrize("gate", open_gates())
@pytest.mark.parametrize("pool", POOLS)
def test_made_up_names_have_the_share_of_their_address(gate: Gate, pool: str) -> None:
    broker = Broker(Clock(), Log(Clock()), "none")
    quotas = broker.quotas
    quotas.most[pool] = 100 * SHARE
    for number in range(100):
        quotas.take(pool, session(broker, gate, f"made-up-{number}"))
    assert quotas.used[pool] == {"address 10.0.0.1": 100}
    lacks = quotas.lacks(pool, session(broker, gate, "one-more"))
    assert lacks.startswith("address 10.0.0.1 has 100")
    assert not quotas.lacks(pool, session(broker, gate, "one-more", "10.0.0.2"))


def test_a_name_that_was_checked_is_its_own(tmp_path: Path) -> None:
    add_user(tmp_path / "users", "ann", b"secret")
    broker = Broker(Clock(), Log(Clock()), "none")
    rules = Listener(
        address="127.0.0.1:0", allow_anonymous=True, password_file=str(tmp_path / "users")
    )
    gates = Gates(broker.open)
    gate = gates.gate(rules)
    assert gate.checks
    assert gates.files()[0].verify("ann", b"secret")  # type: ignore[union-attr]
    assert admitted(gate, "ann", b"secret").owner == "user 'ann'"
    assert admitted(gate, "").owner == "address 10.0.0.1"
    gates.close()


def test_lasting_sessions_of_made_up_names_over_mqtt() -> None:
    stage = Stage()
    stage.broker.quotas.most["lasting sessions"] = 3 * SHARE
    answers = []
    for number in range(5):
        device = stage.silent()
        name = b"made-up-%d" % number
        device.say(codec.connect(name, False, 0, user=name, password=b""))
        answers.append(device.hear())
    assert answers == [["CONNACK 0"]] * 3 + [["CONNACK 3"]] * 2
