"""What was tried against the hub, counted by the runs, and the tables of docs/security.md from it.

    python -m tests.security --run [FILE …]   run the tests of TRIED, count, and write the page
    python -m tests.security --fuzz    take over what `python -m tests.fuzz --goals` counted
    python -m tests.runtime.turns      measure how long one who asks for much keeps others waiting
    python -m tests.security           write the page
    make soak RECORD=1                 run the attacks and floods in full, which report here

The numbers stand in tests/security.json. `tests/test_security.py` holds that and the page together.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parents[1]
FILE: Final = Path(__file__).with_suffix(".json")
PAGE: Final = ROOT / "docs" / "security.md"
RECORD: Final = "HUBBUB_RECORD"  # in the environment of a run whose numbers are to be kept
COUNTED: Final = "tried"  # the property of a test that counts by itself (`record_property`)

Row = Mapping[str, Any]
Note = Callable[[str, object], None]  # what `record_property` is


class Tried(NamedTuple):
    """`tests`: how their ids begin, without "tests/"; together they are one line of the page."""

    attack: str
    tests: tuple[str, ...]
    result: str


TRIED: Final = (
    Tried(
        "values of `alg` that are not set, `none` in four spellings, signed or not",
        ("auth/test_tokens.py::test_only_the_settings", "auth/test_tokens.py::test_an_algorithm"),
        "refused",
    ),
    Tried(
        "HS256 signed with the bytes of the public RSA key",
        ("auth/test_tokens.py::test_a_public_key_is_not",), "refused",
    ),
    Tried(
        "keys that the token brings (`jwk`, `jku`, `x5u`), `crit`, `kid` with a path",
        ("auth/test_tokens.py::test_keys_that_a_token_brings",), "refused, nothing fetched",
    ),
    Tried(
        "claims of wrong type, missing, too long, over, not yet, for others",
        ("auth/test_tokens.py::test_what_claims", "auth/test_tokens.py::test_a_token_for_somebody"),
        "refused, each with its reason",
    ),
    Tried(
        "garbage and JSON of any shape as a token",
        ("auth/test_tokens.py::test_garbage", "auth/test_tokens.py::test_signed_claims"),
        "refused; no traceback",
    ),
    Tried(
        "tokens of 30 MB, 5,000 brackets deep, just too long",
        ("auth/test_tokens.py::test_a_token_of_any_length",), "refused in under 50 ms",
    ),
    Tried(
        "staying after the token is over: MQTT, SMQ, message-switch, HTTP, uploads",
        ("auth/test_token_logins.py",), "ended within 1.5 s; uploads answered 401",
    ),
    Tried(
        "a PROXY header from who is not trusted, malformed, missing, half, too long",
        ("wire/test_proxy.py::test_what_is_no", "wire/test_proxy.py::test_garbage",
         "runtime/test_proxies.py"),
        "refused; half a header is closed in time",
    ),
    Tried(
        "the same behind haproxy", ("interop/test_haproxy.py",), "the client is who haproxy says"
    ),
    Tried(
        "more connections, or faster, than an address or a user may have",
        ("runtime/test_arrivals.py",), "refused in the words of each protocol",
    ),
    Tried(
        "sending faster than the rates of a client, a user, an address behind a balancer",
        ("runtime/test_rates.py",), "read from more slowly; nothing lost",
    ),
    Tried(
        "commands of dynamic security by who may not, delayed, retained, as an answer",
        ("runtime/test_control.py::test_only_who", "runtime/test_control.py::test_who"),
        "refused, or done and kept nowhere",
    ),
    Tried(
        "commands of any shape", ("runtime/test_control.py::test_any_command",),
        "answered; the file can be read again",
    ),
    Tried(
        "answers to commands beside mosquitto",
        ("interop/test_dynamic_security.py::test_the_answers",
         "interop/test_dynamic_security.py::test_mosquitto_ctrl"),
        "the same",
    ),
    Tried(
        "`kill -9` right after a command is answered",
        ("interop/test_dynamic_security.py::test_a_kill",), "nothing lost",
    ),
    Tried(
        "passwords and tokens in journal, log, status, tables, after logins by every door",
        ("auth/test_no_secret_is_kept.py",), "none found",
    ),
    Tried("SIGHUP every 2 ms while a journal is read", ("cli/test_hangup.py",), "it starts"),
    Tried(
        "each verb at each door without the right", ("auth/test_rights_at_every_door.py",),
        "refused",
    ),
    Tried(
        "damaged directories, by `journal verify` and by a start",
        ("interop/test_damaged_directories.py",), "both say the same; the next step is named",
    ),
    Tried(
        "a disk that is full, slow, read-only, or fails to sync", ("interop/test_disk.py",),
        "refused what stays; nothing acknowledged lost; goes on when there is room",
    ),
    Tried("a roll that fails", ("interop/test_roll_trouble.py",), "trouble, told once everywhere"),
    Tried("a flood of refusals against the audit", ("interop/test_audit.py",), "bounded"),
    Tried(
        "frames of a WebSocket, as many as there are at once: SUBSCRIBE, SMQ Create, ping",
        ("runtime/test_framing.py::test_thousands",), "heard in turns, answered in order",
    ),
    Tried(
        "thousands of pipelined requests of message-switch, logged in or not, behind the last one",
        ("protocols/switch/test_connection.py::test_requests_by_the_thousand",
         "protocols/switch/test_connection.py::test_behind_the_last_request",
         "protocols/switch/test_connection.py::test_who_is_not_logged_in_may"),
        "heard in turns, 100 before a login, none behind the last",
    ),
    Tried(
        "visits to web pages without a login", ("runtime/test_guests.py",),
        "forgotten when they end",
    ),
)  # fmt: skip


# The file


def known() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return found


def record(table: str, name: str, row: Row, always: bool = False) -> None:
    """Keep a row, if this run is one whose numbers are kept."""
    if always or os.environ.get(RECORD):
        found = known()
        found.setdefault(table, {})[name] = _short(dict(row))
        FILE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def _short(value: Any) -> Any:
    """Four digits that count."""
    if isinstance(value, dict):
        return {name: _short(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


# The tables


def _tried(rows: Mapping[str, Row]) -> list[str]:
    lines = []
    for one in TRIED:
        files = sorted({f"`tests/{test.split('::')[0]}`" for test in one.tests})
        count = rows.get(one.attack, {}).get("count", 0)
        lines.append(f"| {one.attack} | {', '.join(files)} | {count:,} | {one.result} |")
    return lines


def _attacks(rows: Mapping[str, Row]) -> list[str]:
    return [
        f"| {name} | {row['tool']} | {row['times']:,} | {row['ping'] * 1e3:,.0f} ms | "
        f"{row['publish'] * 1e3:,.0f} ms | {row['most']} MiB | {row['after']} MiB |"
        for name, row in rows.items()
    ]


def _floods(rows: Mapping[str, Row]) -> list[str]:
    return [
        f"| {name} | {row['opened']:,} | {_waited(row['calm'])} | {_came(row['elsewhere'])} | "
        f"{_came(row['same'])} | {_came(row['pages'])} | "
        f"{row['memory'][0]}, {row['memory'][1]} MiB |"
        for name, row in rows.items()
    ]


def _waited(times: Sequence[float]) -> str:
    return f"{times[0]:.2f} / {times[1]:.2f} s"


def _came(visits: Row) -> str:
    return f"{visits['in']} of {visits['of']}, {_waited(visits['waited'])}"


def _fuzz(rows: Mapping[str, Row]) -> list[str]:
    return [f"| `{name}` | {row['inputs']:,} | {row['result']} |" for name, row in rows.items()]


def _turns(rows: Mapping[str, Row]) -> list[str]:
    return [
        f"| {name} | {row['longest'] * 1e3:.1f} ms | {row['times']:,} | "
        f"{row['each'] * 1e6:.1f} us |"
        for name, row in rows.items()
    ]


TABLES: Final[dict[str, tuple[str, Callable[[Mapping[str, Row]], list[str]]]]] = {
    "tried": ("attack | tests | count | result", _tried),
    "attacks": (
        "attack | with | count | longest ping | longest publish | memory | 5 s later", _attacks
    ),
    "floods": (
        "flood | opened | calm | from elsewhere | from its own address | the same over HTTP | "
        "memory, 12 s later", _floods
    ),
    "turns": ("asked | longest turn | of so many | each", _turns),
    "fuzz": ("parser | inputs | result", _fuzz),
}  # fmt: skip


def table(name: str, rows: Mapping[str, Row]) -> str:
    """As it stands in the page."""
    head, lines = TABLES[name]
    return "\n".join((f"| {head} |", "|---" * (head.count("|") + 1) + "|", *lines(rows), ""))


def page(text: str) -> str:
    """The page with the tables of what is known now."""
    found = known()
    for name, (head, _) in TABLES.items():
        old = re.search(rf"^\| {re.escape(head)} \|\n(?:\|.*\n)+", text, re.M)
        assert old is not None, f"the page has no table | {head} |"
        text = text[: old.start()] + table(name, found.get(name, {})) + text[old.end() :]
    return text


# Counting


class Counts:
    """A plugin of pytest: how often something was tried, in what passed."""

    def __init__(self) -> None:
        self.times: dict[str, int] = {}
        self.found: Counter[str] = Counter()
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            settings = getattr(
                getattr(item, "obj", None), "_hypothesis_internal_use_settings", None
            )
            self.times[item.nodeid] = settings.max_examples if settings is not None else 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        if report.when != "call" or not report.passed:
            return
        said = dict(report.user_properties).get(COUNTED)
        times = said if isinstance(said, int) else self.times.get(report.nodeid, 1)
        for one in TRIED:
            if report.nodeid.removeprefix("tests/").startswith(one.tests):
                self.found[one.attack] += times


def run(chosen: list[str]) -> int:
    """The tests of TRIED, or of those lines whose files are named; 0 if all passed."""
    counts = Counts()
    files = {
        one.attack: {f"tests/{test.split('::')[0]}" for test in one.tests} for one in TRIED
    }
    lines = [one for one in files if not chosen or files[one] & set(chosen)]
    told = sorted(set().union(*(files[one] for one in lines)))
    pytest.main(["-q", "-p", "no:cacheprovider", *told], plugins=[counts])
    for one in lines:
        record("tried", one, {"count": counts.found[one]}, always=True)
    print(f"failed: {counts.failed}" if counts.failed else "all passed")
    return 1 if counts.failed else 0


def take_fuzz() -> None:
    for file in sorted(Path("build/fuzz").glob("*.count")):
        crashes = list(file.parent.glob(f"{file.stem}-crash-*"))
        before = known().get("fuzz", {}).get(file.stem, {})
        row = {"inputs": int(file.read_text()), "result": before.get("result", "nothing found")}
        if crashes:
            row["result"] = f"{len(crashes)} found"
        record("fuzz", file.stem, row, always=True)


if __name__ == "__main__":
    code = run(sys.argv[2:]) if sys.argv[1:2] == ["--run"] else 0
    if "--fuzz" in sys.argv:
        take_fuzz()
    PAGE.write_text(page(PAGE.read_text()))
    sys.exit(code)
