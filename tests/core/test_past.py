"""What a subscription from the past may ask, and how what comes looks."""

from __future__ import annotations

import json

import pytest

from hubbub.core import past
from hubbub.core.limits import HISTORY_MESSAGES
from hubbub.core.past import Past, past_of, recalled, split
from hubbub.schema import Row

NOW = 1_800_000_000_000_000
HOUR = 3_600_000_000


def test_what_may_be_said() -> None:
    assert past_of("20", "", NOW) == Past(20, 0)
    assert past_of("", "1h", NOW) == Past(0, NOW - HOUR)
    assert past_of("5", "90s", NOW) == Past(5, NOW - 90_000_000)
    assert past_of("", "2027-01-15T08:00:00Z", NOW) == Past(0, NOW)
    assert past_of("", "2027-01-15T08:00", NOW) == past_of("", "2027-01-15T09:00+01:00", NOW)
    assert past_of("", "999999999d", NOW) == Past(0, 1)
    assert split("$history/20/a/#", NOW) == (Past(20, 0), "a/#")
    assert split("$history/7d/a", NOW) == (Past(0, NOW - 7 * 24 * HOUR), "a")
    assert split("$historya/20/a", NOW) == (None, "$historya/20/a")


@pytest.mark.parametrize("last", ["0", "-1", "x", "1.5", str(HISTORY_MESSAGES + 1), "9" * 5_000])
def test_how_many_it_cannot_be(last: str) -> None:
    with pytest.raises(ValueError, match="last: expected 1 to 10000"):
        past_of(last, "", NOW)


@pytest.mark.parametrize("since", ["1y", "h", "tomorrow", "1h ", "9999999999s", "١h"])
def test_since_when_it_cannot_be(since: str) -> None:
    with pytest.raises(ValueError, match="since: expected 90s"):
        past_of("", since, NOW)


@pytest.mark.parametrize("name", ["$history/", "$history/20", "$history/20/", "$history//a"])
def test_names_that_say_nothing(name: str) -> None:
    with pytest.raises(ValueError, match="expected "):
        split(name, NOW)


def test_what_comes_says_when_it_was_published_and_asks_nothing() -> None:
    properties = json.dumps({"user": [["k", "v"]]}).encode()
    row = Row(
        7, NOW, b"publish", b"mqtt", b"ann", b"a", qos=2, retain=True, payload=b"x",
        reply_to=b"answers", correlation=b"1", properties=properties,
    )  # fmt: skip
    message = recalled(row)
    time = [past.TIME, "2027-01-15T08:00:00.000+00:00"]
    assert message.properties == {"user": [["k", "v"], time]}
    assert (message.qos, message.seq, message.reply_to, message.correlation) == (0, 0, "", b"")
