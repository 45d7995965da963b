"""Who came in, who was refused, who managed what: told once, bounded, and never for the fold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hubbub import schema
from hubbub.core.audit import Audit
from hubbub.core.broker import Broker
from hubbub.core.gate import Admission, Credentials, Gate, Opening
from hubbub.core.limits import REFUSALS_TOLD, SAID_A_SECOND
from hubbub.core.rights import BAD_CREDENTIALS, Rights
from hubbub.core.session import Session, Silent
from hubbub.core.state import State
from hubbub.schema import Row, any_changes_state, changes_state
from tests.core.recording import Recording, StillClock
from tests.rights import ruled
from tests.wire import Refusing


def audit() -> tuple[Audit, Recording, StillClock]:
    clock = StillClock()
    rows = Recording(clock)
    return Audit(clock, rows), rows, clock


def opening(address: str = "192.0.2.7", broker: Broker | None = None) -> Opening:
    made = Opening(Gate(Rights(), "127.0.0.1:1883"), address)
    made.protocol = "any"
    if broker is not None:
        made.carrier = Refusing(broker)
    return made


def client(user: str = "ann", address: str = "192.0.2.7") -> Session:
    session = Silent("any", "panel", ruled("deny house/safe", "write house/#"))
    session.user, session.address, session.opening = user, address, opening(address)
    return session


def properties(row: Row) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(row.properties or b"{}")
    return found


def test_who_came_in_has_a_row_with_user_address_and_listener_and_a_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "hubbub.audit")
    clock = StillClock()
    rows = Recording(clock)
    broker = Broker(clock, rows)
    for lasting in (False, True):
        session = Silent("any", "panel", broker.open)
        session.lasting = lasting
        admission = Admission("any", "panel", "ann", broker.open, opening())
        admission.credentials = Credentials("panel", "ann", b"", "192.0.2.7")
        broker.connect(session, admission)
    for row in rows.rows:
        assert row.kind == schema.CONNECT and row.client == b"panel"
        found = properties(row)
        assert (found["user"], found["address"]) == ("ann", "192.0.2.7")
        assert found["listener"] == "127.0.0.1:1883"
    line = "user 'ann' (client 'panel') came in [any, 192.0.2.7, listener 127.0.0.1:1883]"
    assert [record.getMessage() for record in caplog.records] == [line] * 2
    broker.connect(Silent("any", "hub's own", broker.open), broker.own("any", "hub's own"))
    assert len(caplog.records) == 2, "nobody came in: no gate was asked"


def test_a_refused_login_says_who_where_and_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "hubbub.audit")
    told, rows, _ = audit()
    told.turned_away(opening(), "ann", "panel", BAD_CREDENTIALS)
    [row] = rows.rows
    assert (row.kind, row.protocol, row.client) == (schema.REFUSED, b"any", b"panel")
    assert properties(row) == {
        "verb": "connect", "user": "ann", "address": "192.0.2.7", "listener": "127.0.0.1:1883",
        "reason": BAD_CREDENTIALS,
    }  # fmt: skip
    [line] = [record.getMessage() for record in caplog.records]
    assert "user 'ann' (client 'panel') at 192.0.2.7 was not let in: wrong user" in line
    assert [one.user for one in told.refusals.last("ann", "panel")] == ["ann"]


def test_a_refused_action_says_verb_name_and_rule(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "hubbub.audit")
    told, rows, _ = audit()
    why = told.refused(client(), "publish", "house/safe")
    [row] = rows.rows
    assert (row.kind, row.client, row.topic) == (schema.REFUSED, b"panel", b"house/safe")
    found = properties(row)
    assert (found["verb"], found["user"], found["address"]) == ("publish", "ann", "192.0.2.7")
    assert "deny house/safe" in found["rule"] and found["rule"] in why
    assert caplog.records[0].getMessage().startswith(why)


def test_what_is_managed_says_how_it_ended(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "hubbub.audit")
    told, rows, _ = audit()
    told.managed(client("boss"), "destroy", "$queue/q")
    told.managed(client("boss"), "createRole", "guest", "Role already exists")
    assert [row.kind for row in rows.rows] == [schema.MANAGED] * 2
    first, second = map(properties, rows.rows)
    assert (first["verb"], rows.rows[0].topic, "trouble" in first) == (
        "destroy", b"$queue/q", False
    )  # fmt: skip
    assert second["trouble"] == "Role already exists"
    assert "createRole guest: Role already exists" in caplog.records[1].getMessage()


def test_a_flood_fills_neither_the_journal_nor_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Of each sort so many a minute; then how many more there were, and again."""
    caplog.set_level("INFO", "hubbub.audit")
    told, rows, clock = audit()
    for number in range(10_000):
        told.turned_away(opening(f"198.51.{number % 100}.7"), "", f"c{number}", BAD_CREDENTIALS)
    assert len(rows.rows) == len(caplog.records) == REFUSALS_TOLD
    told.refused(client(), "publish", "house/safe")
    assert properties(rows.rows[-1])["verb"] == "publish", "the rest has a bound of its own"
    told.wake()
    assert len(rows.rows) == REFUSALS_TOLD + 1, "not before the minute is over"
    clock.seconds += 61
    told.wake()
    rest = rows.rows[-1]
    assert (rest.kind, rest.client, rest.number) == (schema.REFUSED, b"", 10_000 - REFUSALS_TOLD)
    assert properties(rest) == {"verb": "connect"}
    assert f"{10_000 - REFUSALS_TOLD} more logins" in caplog.records[-1].getMessage()
    told.turned_away(opening(), "", "c", BAD_CREDENTIALS)
    assert rows.rows[-1].client == b"c", "a new minute"


def test_one_address_hides_no_other() -> None:
    told, rows, _ = audit()
    for number in range(1_000):
        told.turned_away(opening(), f"user{number}", f"flood{number}", BAD_CREDENTIALS)
    told.turned_away(opening("203.0.113.9"), "", "honest", BAD_CREDENTIALS)
    assert rows.rows[-1].client == b"honest" and len(rows.rows) == REFUSALS_TOLD // 2 + 1


def test_a_user_name_that_nobody_checked_is_no_users() -> None:
    told, rows, _ = audit()
    for number in range(1_000):
        session = client(f"user{number}")
        assert session.opening is not None
        session.opening.credentials = Credentials("panel", session.user, b"", session.address)
        told.refused(session, "publish", "house/safe")
    assert len(rows.rows) == REFUSALS_TOLD // 2


def test_what_is_left_out_is_said_before_the_end() -> None:
    told, rows, _ = audit()
    for _ in range(1_000):
        told.refused(client(), "publish", "house/safe")
    told.close()
    assert rows.rows[-1].number == 1_000 - REFUSALS_TOLD // 2
    told.close()
    assert len(rows.rows) == REFUSALS_TOLD // 2 + 1, "once"


def test_a_storm_of_logins_is_bounded_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "hubbub.audit")
    told, _, clock = audit()
    for _ in range(1_000):
        told.connected(client())
    clock.seconds += 1
    told.connected(client())
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == SAID_A_SECOND + 2 and said[-2].startswith(f"{1_000 - SAID_A_SECOND} more")


def test_without_the_setting_there_are_lines_and_no_rows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "hubbub.audit")
    told, rows, _ = audit()
    told.rows = False
    told.refused(client(), "publish", "house/safe")
    told.turned_away(opening(), "ann", "panel", BAD_CREDENTIALS)
    told.managed(client(), "destroy", "q")
    told.lacked(client(), "queues", "refused for want of room")
    assert not rows.rows and len(caplog.records) == 4


def test_names_of_any_length_and_bytes_make_small_rows() -> None:
    told, rows, _ = audit()
    session = client("u" * 65_000)
    session.client = "\udcff" * 65_000
    told.refused(session, "publish", "\udcfe/" * 30_000)
    told.managed(session, "x" * 65_000, "\n" * 65_000)
    for row in rows.rows:
        assert sum(len(one) for one in row if isinstance(one, bytes)) < 6_000
        assert row.properties.decode() and row.client.decode() and row.topic.decode()


def test_no_state_comes_of_them() -> None:
    state = State()
    for kind in (schema.REFUSED, schema.MANAGED):
        row = Row(1, 1, kind, b"any", b"c", b"t", number=3, properties=b'{"verb":"publish"}')
        assert not changes_state(row)
        assert not any_changes_state([[one] for one in row])
        before = list(state.rows())
        state.apply(row)
        assert list(state.rows()) == before
