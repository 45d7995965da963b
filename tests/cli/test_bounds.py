"""The table of all bounds: complete, true, and the same in the manual."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from hubbub.cli import app
from hubbub.cli.bounds import BOUNDS, UNITS, text
from hubbub.config.settings import Limits, Queue, Rpc, Session, Settings
from hubbub.core import limits
from tests.process import ROOT

PAGE = ROOT / "docs/reference/bounds.md"
NO_BOUNDS = {"limits.busy_poll_us"}  # numbers that bound nothing


def shown(*arguments: str) -> dict[str, list[str]]:
    result = CliRunner().invoke(app, ["config", "--bounds", *arguments])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    cells = [[one.strip() for one in line.split("  ") if one] for line in lines]
    return {row[0]: row[1:] for row in cells}


def test_every_constant_has_a_row() -> None:
    rows = {one.name.upper() for one in BOUNDS}
    constants = {name for name in vars(limits) if name.isupper()} - set(UNITS)
    assert constants <= rows, f"add rows to cli/bounds.py: {sorted(constants - rows)}"
    named = {one.name.upper() for one in BOUNDS if not one.setting}
    assert named <= constants, f"no constants of core/limits.py: {sorted(named - constants)}"
    assert len(BOUNDS) == len({one.name for one in BOUNDS})


@pytest.mark.parametrize("kind", [Limits, Session, Queue, Rpc])
def test_every_number_among_the_settings_has_a_row(kind: type[msgspec.Struct]) -> None:
    section = kind.__name__.lower()
    numbers = {
        f"{section}.{field.name}"
        for field in msgspec.structs.fields(kind)
        if isinstance(field.default, int | float)
    }
    rows = {one.setting for one in BOUNDS}
    assert numbers and numbers - NO_BOUNDS <= rows, sorted(numbers - NO_BOUNDS - rows)


def test_every_setting_of_a_row_exists_and_has_the_value_of_its_constant() -> None:
    settings = Settings()
    for one in BOUNDS:
        if one.setting and not one.setting.startswith("listener."):
            value = attrgetter(one.setting)(settings)
            assert value == getattr(limits, one.name.upper(), value), one


def test_it_says_what_a_file_sets(tmp_path: Path) -> None:
    assert shown()["user_connections"] == ["none", "user", "refused: 0x97, 429",
                                           "limits.user_connections"]  # fmt: skip
    assert shown()["head_bytes"][0] == "16 KiB" and shown()["head_bytes"][-1] == "fixed"
    file = tmp_path / "hub.toml"
    file.write_text("[limits]\nuser_connections = 1234\nmessage_bytes = 1048576\n")
    found = shown("-c", str(file))
    assert found["user_connections"][0] == "1,234" and found["message_bytes"][0] == "1 MiB"


def test_the_manual_shows_it() -> None:
    assert text(Settings()) in PAGE.read_text(), f"put `hubbub config --bounds` into {PAGE}"
