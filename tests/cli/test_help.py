"""Help texts on 80 columns: in words, whole, in groups, with examples that can be typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from hubbub.cli import _COMMANDS, _GROUPS, _START, app
from tests.test_docs import leaves

TOP = typer.main.get_command(app)


def helps() -> Iterator[tuple[str, str]]:
    groups = [*_COMMANDS, *(name.removeprefix("hubbub ") for name, _ in leaves(TOP, "hubbub"))]
    for words in ("", *dict.fromkeys(groups)):
        said = CliRunner().invoke(
            app, [*words.split(), "--help"], env={"COLUMNS": "80", "TERM": "dumb"}
        )
        assert said.exit_code == 0
        yield words, said.output


def test_nothing_is_cut_and_types_are_words() -> None:
    for words, text in helps():
        for line in text.splitlines():
            assert len(line) <= 80, (words, line)
            assert not re.search(r"<(\w|\[)|list\[|\S…", line), (words, line)
        if words == "pipeline sql":
            assert "deliveries, audit and alerts." in text, "a paragraph fills its lines"


def test_commands_stand_in_groups_and_have_examples() -> None:
    said = dict(helps())
    for title, group in _GROUPS.items():
        panel = said[""].partition(f"─ {title} ─")[2].partition("╰")[0]
        assert all(f"│ {name} " in panel for name in group), title
    for name, command in _COMMANDS.items():
        for example in command.examples:
            assert example in said[name], example


def known(words: list[str]) -> tuple[Any, list[str]]:
    command: Any = TOP
    rest = words[1:]
    while hasattr(command, "list_commands"):
        context = command.make_context("hubbub", ["--help"], resilient_parsing=True)
        command = command.get_command(context, rest.pop(0))
    return command, rest


def test_the_examples_can_be_typed() -> None:
    every = [one for command in _COMMANDS.values() for one in command.examples]
    for example in [*_START, *every]:
        if "COMMAND" not in example:
            words = shlex.split(example.rpartition("| ")[2].partition(" > ")[0])
            command, rest = known(words)
            command.make_context(words[1], rest)  # click says if there is no such option


def test_what_is_no_number_is_in_no_range() -> None:
    ranges = 0
    for words, command in leaves(TOP, "hubbub"):
        for one in command.params:
            if one.type.name == "float range":
                ranges += 1
                with pytest.raises(Exception, match="nan is not in the range"):
                    one.type.convert("nan", one, None)
                assert one.type.convert("7", one, None) == 7, words
    assert ranges > 10


def test_h_is_help_where_it_is_not_the_host() -> None:
    for words in ("", "serve", "journal verify", "switch call"):
        asked = [CliRunner().invoke(app, [*words.split(), one]) for one in ("--help", "-h")]
        assert (asked[1].exit_code, asked[1].output) == (0, asked[0].output), words
    said = CliRunner().invoke(app, ["pub", "--help"], env={"COLUMNS": "80", "TERM": "dumb"})
    assert re.search(r"--host +-h ", said.output)
    assert not re.search(r"--help +-h", said.output)
