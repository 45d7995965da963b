"""Who came in, who was refused, who managed what: by every protocol, as a real hub tells it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from hubbub.auth.passwords import add_user
from hubbub.journal.table import Table
from tests.command import hubbub
from tests.process import RunningHub, StartHub
from tests.runtime.test_control import beginning

RIGHT, WRONG, NEW = "correct-horse-battery", "wrong-horse-staple", "new-horse-for-carol"
ACL = """\
user ann
topic readwrite house/#
topic deny house/safe
user boss
topic readwrite #
topic readwrite $SYS/#
topic manage $SYS/#
topic manage $queue/#
topic readwrite $queue/#
"""

pytestmark = pytest.mark.interop


def told(hub: RunningHub) -> list[dict[str, Any]]:
    """The rows of a hub that has ended, with what their properties say."""
    table = Table(str(hub.data))
    batches = table.read(table.first() - 1, table.committed())
    rows = [row for one in batches for row in one.to_pylist()]
    return [{**row, **json.loads(row["properties"] or "{}")} for row in rows]


def guarded(folder: Path, start_hub: StartHub, *more: str) -> RunningHub:
    for user in ("ann", "boss"):
        add_user(folder / "users", user, RIGHT.encode())
    (folder / "acl").write_text(ACL)
    settings = (f"password_file={folder}/users", f"acl_file={folder}/acl", *more)
    return start_hub(*(word for one in settings for word in ("--set", one)))


def url(hub: RunningHub, scheme: str, who: str) -> str:
    return hub.url(scheme).replace("://", f"://{who}@")


def test_by_each_protocol(tmp_path: Path, start_hub: StartHub) -> None:
    hub = guarded(tmp_path, start_hub)
    for scheme in ("mqtt", "smq"):
        hubbub("pub", "house/x", "-m", "1", "--url", url(hub, scheme, f"ann:{WRONG}"))
        for topic in ("house/x", "house/safe"):
            hubbub("pub", topic, "-m", "1", "--url", url(hub, scheme, f"ann:{RIGHT}"))
    for path in ("/login/web", "/api/v1/status"):
        assert httpx.get(hub.url("http") + path, auth=("ann", WRONG)).status_code == 401
    with httpx.Client(base_url=hub.url("http"), auth=("ann", RIGHT)) as ann:
        assert ann.get("/api/v1/status").status_code == 403
        assert ann.get("/api/v1/journal").status_code == 403
    with httpx.Client(base_url=hub.url("http"), auth=("boss", RIGHT)) as boss:
        assert boss.get("/login/web").status_code == 200
        boss.get("/create/q")
        mqtt = url(hub, "mqtt", f"boss:{RIGHT}")
        hubbub("pub", "$queue/others", "-m", "1", "-q", "1", "--url", mqtt)
        assert boss.get("/destroy/others").status_code == 200
    with httpx.Client(base_url=hub.url("http"), auth=("boss", RIGHT)) as boss:
        batch = {"Hubbub-Batch": "query/0/0", "Hubbub-First": "0"}
        line = b'{"topic": "house/x", "payload": "1"}'
        assert boss.post("/api/v1/publish", content=line, headers=batch).status_code == 200
        assert boss.delete("/api/v1/publish/query").json() == {"forgotten": 1}
    assert hub.stop() == 0
    rows = told(hub)
    said = {(row["kind"], row["protocol"], row.get("user"), row.get("verb")) for row in rows}
    for protocol in ("mqtt", "smq"):
        assert ("connect", protocol, "ann", None) in said
        assert ("refused", protocol, "ann", "publish") in said
    for protocol in ("mqtt", "smq", "switch", "http"):
        assert ("refused", protocol, "ann", "connect") in said
    assert ("connect", "switch", "boss", None) in said
    assert ("refused", "http", "ann", "trace") in said
    assert ("managed", "http", "boss", "forget query") in said
    assert ("managed", "switch", "boss", "destroy") in said
    audited = [row for row in rows if row["kind"] in ("refused", "managed", "connect")]
    assert {(row.get("address"), row.get("listener")) for row in audited} == {
        ("127.0.0.1", "127.0.0.1:0")  # as the settings say it
    }
    rules = {row.get("rule", "")[-17:] for row in rows if row["topic"] == "house/safe"}
    assert "(deny house/safe)" in rules
    lines = (tmp_path / "hub.log").read_text().splitlines()
    for row in audited:
        user = row.get("user", "")
        assert any("hubbub.audit" in one and f"user '{user}'" in one for one in lines), row
    for secret in (RIGHT, WRONG):
        for file in (*hub.data.rglob("*"), tmp_path / "hub.log"):
            assert file.is_dir() or secret.encode() not in file.read_bytes(), file


def test_a_flood_of_strangers_fills_neither(tmp_path: Path, start_hub: StartHub) -> None:
    hub = guarded(tmp_path, start_hub)
    once = {"connection": "close"}  # a stranger's would be closed after a while
    with httpx.Client(base_url=hub.url("http"), headers=once) as client:
        for number in range(400):
            assert client.get("/api/v1/status", auth=(f"u{number}", "")).status_code == 401
    assert hub.stop() == 0
    refused = [row for row in told(hub) if row["kind"] == "refused"]
    assert len(refused) == 61, "half of 120 for one address, and the rest in one"
    assert sum(row["number"] or 1 for row in refused) == 400, "the rest is counted"
    assert (tmp_path / "hub.log").read_text().count("hubbub.audit") == len(refused)


def test_commands_of_dynamic_security(tmp_path: Path, start_hub: StartHub) -> None:
    """Who made whom; the password of the new one is in neither."""
    file = beginning(tmp_path / "ds.json")
    hub = start_hub("--set", f"dynamic_security={file}")
    command = {"command": "createClient", "username": "carol", "password": NEW}
    topic, payload = "$CONTROL/dynamic-security/v1", json.dumps({"commands": [command, command]})
    hubbub("pub", topic, "-m", payload, "-q", "1", "--url", url(hub, "mqtt", "admin:adminpw"))
    assert hub.stop() == 0
    first, second = [row for row in told(hub) if row["kind"] == "managed"]
    said = (first["user"], first["verb"], first["topic"])
    assert said == ("admin", "createClient", "username 'carol'")
    assert "trouble" not in first and second["trouble"] == "Client already exists"
    log = (tmp_path / "hub.log").read_text()
    assert "createClient username 'carol': done" in log
    for secret in (NEW, "adminpw"):
        assert secret not in log
        for one in hub.data.rglob("*"):
            assert one.is_dir() or secret.encode() not in one.read_bytes(), one


def test_without_rows_there_are_lines(tmp_path: Path, start_hub: StartHub) -> None:
    hub = guarded(tmp_path, start_hub, "journal.audit=false")
    assert httpx.get(hub.url("http") + "/api/v1/status", auth=("ann", WRONG)).status_code == 401
    assert hub.stop() == 0
    assert not [row for row in told(hub) if row["kind"] in ("refused", "managed")]
    assert "was not let in" in (tmp_path / "hub.log").read_text()


def test_ids_are_removed_by_who_may_and_a_restart_knows_it(
    tmp_path: Path, start_hub: StartHub
) -> None:
    hub = guarded(tmp_path, start_hub)
    for topic in ("house/a", "house/b"):
        hubbub("pub", topic, "-m", "1", "--url", url(hub, "smq", f"ann:{RIGHT}"))
    ann, boss = (url(hub, "http", f"{user}:{RIGHT}") for user in ("ann", "boss"))
    nosy = hubbub("remove-id", "house/a", "--url", ann)
    assert nosy.returncode == 1 and "may not manage 'house/a'" in nosy.stderr
    (tmp_path / "acl").write_text(ACL + "topic manage house/#\n")
    hub.process.send_signal(1)
    done = hubbub("remove-id", "house/a", "--url", boss)
    assert done.stdout == "house/a: removed\n", done.stderr
    assert "there is no such id" in hubbub("remove-id", "house/a", "--url", boss).stderr
    assert "no such id" in hubbub("remove-id", "--subtopic", "x", "--url", boss).stderr
    hub.process.kill()
    hub.process.wait(20)
    hub = start_hub("--set", "allow_anonymous=true")
    api = hub.url("http") + "/api/v1/ids"
    assert httpx.delete(api, params={"topic": "house/a"}).status_code == 404
    assert httpx.delete(api, params={"topic": "house/b"}).json() == {"removed": "house/b"}
    assert httpx.delete(api).status_code == httpx.delete(api, params={"x": "y"}).status_code == 400
    assert hub.stop() == 0
    managed = [row for row in told(hub) if row["kind"] == "managed"]
    said = [(row["verb"], row["topic"], row.get("user")) for row in managed]
    assert ("remove topic id", "house/a", "boss") in said
    assert ("remove topic id", "house/b", None) in said
