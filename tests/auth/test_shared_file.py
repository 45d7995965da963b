"""One dynamic-security.json that several processes of a hub read and write."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hubbub.auth import dynamic_commands
from hubbub.auth.dynamic import STAMPS, Dynamic
from hubbub.auth.entries import Told
from hubbub.errors import SettingError


class Process:
    """One with the file; `news` is what it tells."""

    clock = 100

    def __init__(self, name: str, file: Path) -> None:
        self.news: list[Told] = []
        self.dynamic = Dynamic(file)
        self.name = name
        self.dynamic.share(name, self._stamp)
        self.dynamic.beside = "abc"
        self.dynamic.told = self.news.extend

    def _stamp(self) -> int:
        Process.clock += 1
        return Process.clock

    def do(self, command: str, user: str, **more: Any) -> None:
        said = json.dumps({"commands": [{"command": command, "username": user, **more}]})
        done = dynamic_commands.run(self.dynamic.book, said.encode())
        assert "error" not in done.answer[0]
        self.dynamic.save()

    def hears(self, other: Process) -> None:
        self.dynamic.learn(other.news, other.name)

    def users(self) -> set[str]:
        return set(self.dynamic.book.clients)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "dynamic.json"
    file.write_text("{}")
    return file


@pytest.fixture
def three(file: Path) -> list[Process]:
    made = [Process(name, file) for name in "abc"]
    made[0].do("createClient", "ann")
    for one in made[1:]:
        one.hears(made[0])
    return made


def in_file(file: Path) -> set[str]:
    return {one["username"] for one in json.loads(file.read_text())["clients"]}


def test_who_writes_loses_nothing_that_another_one_wrote(three: list[Process], file: Path) -> None:
    a, b, c = three
    a.do("deleteClient", "ann")
    b.do("createClient", "bob")  # has not heard of it
    assert in_file(file) == {"bob"} == b.users()
    c.dynamic.read()
    assert c.users() == {"bob"}
    for one in three:
        one.dynamic.read()
    assert a.users() == b.users() == c.users() == {"bob"}


def test_an_older_file_brings_nothing_back(three: list[Process], file: Path) -> None:
    a, b, _ = three
    before = file.read_text()
    a.do("deleteClient", "ann")
    b.hears(a)
    a.do("createClient", "bob")
    file.write_text(before)
    b.dynamic.read()
    assert b.users() == set() and in_file(file) == set()
    a.dynamic.read()
    assert a.users() == {"bob"} == in_file(file)
    again = Process("a", file)
    assert again.users() == {"bob"}


def test_what_is_edited_in_an_older_file_is_a_change_and_the_rest_of_it_is_none(
    three: list[Process], file: Path
) -> None:
    a, b, c = three
    a.do("createClient", "bob")
    tree = json.loads(file.read_text())
    a.do("deleteClient", "ann")
    a.do("createClient", "eve")
    for one in (b, c):
        one.hears(a)
    [bob] = [one for one in tree["clients"] if one["username"] == "bob"]
    bob["textname"] = "Bob"
    file.write_text(json.dumps(tree))
    b.news.clear()
    b.dynamic.read()
    assert b.users() == {"bob", "eve"} == in_file(file)
    assert b.dynamic.book.clients["bob"].texts == {"textname": "Bob"}
    assert [one.key for one in b.news] == [("client", "bob", "word", "textname")]
    c.dynamic.read()  # it reads what b wrote: nobody has edited that
    assert c.news == b.news
    assert c.dynamic.book.clients["bob"].texts == {"textname": "Bob"}


def test_who_is_edited_out_of_the_file_goes_also_when_others_write_first(
    three: list[Process], file: Path
) -> None:
    a, b, c = three
    tree = json.loads(file.read_text())
    tree["clients"] = []
    file.write_text(json.dumps(tree))
    c.do("createClient", "bob")
    assert in_file(file) == {"bob"} == c.users()
    for one in (a, b):
        one.dynamic.read()
        assert one.users() == {"bob"}


def test_a_file_without_times_says_what_is_there_now(three: list[Process], file: Path) -> None:
    a, b, _ = three
    a.do("createClient", "bob")
    b.hears(a)
    tree = json.loads(file.read_text())
    del tree[STAMPS]
    tree["clients"] = [one for one in tree["clients"] if one["username"] == "bob"]
    file.write_text(json.dumps(tree))
    b.dynamic.read()
    assert b.users() == {"bob"}
    a.hears(b)
    assert a.users() == {"bob"} == in_file(file)


def test_what_cannot_be_written_is_not_changed(
    three: list[Process], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise SettingError("no room")

    a = three[0]
    before = dict(a.dynamic.entries.known) if a.dynamic.entries else {}
    monkeypatch.setattr("hubbub.auth.dynamic.write_whole", full)
    with pytest.raises(SettingError):
        a.do("deleteClient", "ann")
    a.dynamic.read()
    assert a.users() == {"ann"} and a.dynamic.entries and a.dynamic.entries.known == before


def test_what_another_process_has_written_is_neither_read_nor_written_again(
    three: list[Process], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, _ = three
    a.do("createClient", "bob")
    monkeypatch.setattr(Dynamic, "_text", lambda self: pytest.fail("reads"))
    monkeypatch.setattr(Dynamic, "_write", lambda self: pytest.fail("writes"))
    b.hears(a)
    assert b.users() == {"ann", "bob"}
    monkeypatch.undo()
    other = file.with_name("of another machine")
    other.write_text("{}")
    far = Process("far", other)
    far.dynamic.beside = ("far",)
    far.hears(a)
    assert in_file(other) == {"ann", "bob"}


def test_processes_that_write_at_once_lose_nothing(file: Path) -> None:
    made = [Process(name, file) for name in "abcd"]

    def change(one: Process, name: str) -> Callable[[], None]:
        def run() -> None:
            for number in range(20):
                one.do("createClient", f"{name}{number}")
                if number % 2:
                    one.do("deleteClient", f"{name}{number}")
        return run

    threads = [threading.Thread(target=change(*one)) for one in zip(made, "abcd", strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wanted = {f"{name}{number}" for name in "abcd" for number in range(0, 20, 2)}
    assert in_file(file) == wanted
    for one in made:
        one.dynamic.read()
        assert one.users() == wanted
