"""What one SMQ client can make the hub keep: each has a bound, and a reason for who asks."""

from __future__ import annotations

import pytest

from hubbub.core.quotas import SUBSCRIBED
from hubbub.protocols.smq import codec
from hubbub.protocols.smq.connection import SmqConnection
from tests.protocols.smq.device import Hub


@pytest.fixture
def hub() -> Hub:
    return Hub()


def reasons(hub: Hub) -> list[str]:
    return [one.text for one in hub.broker.audit.refusals.last(None, None)]


def test_what_a_client_observes_counts_as_what_it_subscribes_to(hub: Hub) -> None:
    """It could observe all names that there were, and so could each of a thousand."""
    hub.broker.quotas.most[SUBSCRIBED] = 5 * 1_000
    device, other = hub.device(b"client-a"), hub.device(b"client-b")
    hub.broker.clients[device.etid].payer = "user 'eve'"
    ids = [device.create(name) for name in (b"a", b"b", b"c")]
    other.subscribe(b"c")
    for number in ids[:2]:
        assert device.observe(number) == [("Change", number, 0, b"")]
    assert device.observe(ids[2]) == [("Change", ids[2], 0, b"")], "as without the right"
    assert device.observe(ids[0]) == [("Change", ids[0], 0, b"")], "once more is not one more"
    assert device.observe(other.etid) == [("Change", other.etid, 0, b"")], "not told when it goes"
    assert "user 'eve' has 902 bytes of subscriptions" in reasons(hub)[0]
    other.subscribe(b"a")
    assert device.hear() == [("Change", ids[0], 1, b"")]
    device.hang_up()
    assert hub.broker.quotas.used[SUBSCRIBED].get("user 'eve'", 0) == 0
    assert hub.broker.observers.names == {}


def test_what_a_client_says_of_itself_weighs_as_long_as_it_is_there(hub: Hub) -> None:
    """60 KB of each of ten thousand connections were in no bound."""
    plain, device = hub.device(b"client-a"), hub.device()
    device.hear()
    device.raw(codec.build_connect(b"client-b", info=b"i" * 60_000))
    device.expect("Connack")
    assert device.far.connection.lasting == 60_000 and plain.far.connection.lasting == 0


@pytest.mark.pure
def test_who_asks_for_a_count_over_and_over_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of ten thousand subscribers each took a millisecond: 64 ms before somebody else."""
    hub = Hub()
    device = hub.device(b"device")
    number = device.create(b"topic")
    put_off, turns = SmqConnection.put_off, []

    def counting(connection: SmqConnection) -> None:
        turns.append(connection)
        put_off(connection)

    monkeypatch.setattr("hubbub.core.turns.Stint.over", lambda stint: True)
    monkeypatch.setattr(SmqConnection, "put_off", counting)
    device.far.say(codec.framed(codec.message(codec.OBSERVE, number)) * 10)
    assert device.hear() == [("Change", number, 0, b"")] * 10
    assert len(turns) == 9
