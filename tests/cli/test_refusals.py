"""`hubbub refusals`: why somebody was refused, in one command."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import httpx
import pytest

from hubbub.cli.asked import _lacks
from hubbub.client import blocking
from hubbub.client.mqtt import Refusal, Scram
from hubbub.core.limits import REFUSALS_KEPT
from hubbub.core.rights import Refusals
from tests.command import hubbub
from tests.core.recording import StillClock
from tests.process import StartHub

ACL = """\
user ann
topic readwrite house/#
topic deny house/safe
user boss
topic readwrite #
topic read $SYS/#
"""


@pytest.mark.interop
def test_why_a_user_was_refused(tmp_path: Path, start_hub: StartHub) -> None:
    users, acl = tmp_path / "users", tmp_path / "acl"
    acl.write_text(ACL)
    for user in ("ann", "boss"):
        hubbub("passwd", "add", str(users), user, "--stdin", stdin="secret\n")
    settings = (f"password_file={users}", f"acl_file={acl}", "allow_anonymous=false")
    hub = start_hub(*(word for one in settings for word in ("--set", one)))

    def url(scheme: str, who: str) -> str:
        return hub.url(scheme).replace("://", f"://{who}@")

    hubbub("pub", "house/x", "-m", "1", "-i", "panel", "--url", url("mqtt", "ann:guess"))
    hubbub("pub", "house/safe", "-m", "1", "-q", "1", "--url", url("mqtt", "ann:secret"))
    asked = ("refusals", "--url", url("http", "boss:secret"))
    first, second = hubbub(*asked).stdout.splitlines()
    assert first.endswith(
        "user 'ann' (client 'panel') at 127.0.0.1 was not let in: wrong user name or password"
    )
    assert second.endswith(f"may not publish 'house/safe': refused by {acl}:3 (deny house/safe)")
    assert len(json.loads(hubbub(*asked, "-i", "panel", "--json").stdout)) == 1
    assert "nobody was refused" in hubbub(*asked, "--user", "cy").stdout
    nosy = hubbub("refusals", "--url", url("http", "ann:secret"))
    assert nosy.returncode == 1 and "may not trace" in nosy.stderr
    assert "in an acl_file, `topic read $SYS/#` would" in nosy.stderr
    bold = hubbub("end", "session", "panel", "--url", url("http", "ann:secret"))
    assert "may not manage '$SYS/#'" in bold.stderr
    assert "in an acl_file, `topic manage $SYS/#` would" in bold.stderr


def test_of_who_is_managed_the_command_is_said_that_would_allow_it() -> None:
    why = "user 'admin' (client '') may not manage '$SYS/#': refused by defaultACLAccess (publish)"
    wanted = "addRoleACL ROLE publishClientSend '$CONTROL/hubbub/$SYS/#' allow` would"
    assert wanted in _lacks(why)
    assert not _lacks("user 'ann' may not manage 'a': refused by acl:4 (deny a)")


@pytest.mark.interop
@pytest.mark.parametrize("door", ["switch", "web page", "api", "scram", "smq"])
def test_a_wrong_password_is_there_whatever_was_spoken(
    door: str, tmp_path: Path, start_hub: StartHub
) -> None:
    users = tmp_path / "users"
    for user in ("ann", "boss"):
        hubbub("passwd", "add", str(users), user, "--scram", "--stdin", stdin="secret\n")
    hub = start_hub("--set", f"password_file={users}", "--set", "allow_anonymous=false")
    wrong = httpx.BasicAuth("ann", "guess")
    if door == "smq":
        url = hub.url("smq").replace("://", "://ann:guess@")
        hubbub("pub", "x", "-m", "1", "--url", url)
    elif door == "scram":
        shown = partial(Scram, "ann", "guess")
        with pytest.raises(Refusal), blocking.connect(hub.url("mqtt"), exchange=shown):
            pass
    else:
        path = {"switch": "/login/x", "web page": "/status", "api": "/api/v1/status"}[door]
        assert httpx.get(hub.url("http") + path, auth=wrong).status_code == 401
    boss = hub.url("http").replace("://", "://boss:secret@")
    [said] = hubbub("refusals", "--url", boss, "--user", "ann").stdout.splitlines()
    assert "was not let in: wrong user name or password" in said


def test_the_last_ones_are_kept_and_take_little_memory() -> None:
    refusals = Refusals(StillClock())
    for number in range(REFUSALS_KEPT + 5):
        refusals.keep(f"u{number}", "c" * 65_535, "\udcff" * 65_535)
    last = refusals.last(None, None)
    assert len(last) == REFUSALS_KEPT and last[0].user == f"u{REFUSALS_KEPT + 4}"
    assert all(len(one.client) <= 100 and len(one.text) <= 300 for one in last)
    assert json.dumps([one._asdict() for one in last], ensure_ascii=False).encode()
    assert [one.user for one in refusals.last("u7", None)] == ["u7"]
    assert refusals.last(None, "c") == []


def test_strangers_push_out_nothing_of_what_users_might_not_do() -> None:
    clock = StillClock()
    refusals = Refusals(clock)
    refusals.keep("ann", "panel", "ann may not publish")
    for _ in range(REFUSALS_KEPT + 5):
        clock.seconds += 1.0
        refusals.keep_login("", "s", "not let in")
    clock.seconds += 1.0
    refusals.keep("ann", "panel", "ann may not subscribe")
    last = refusals.last(None, None)
    assert len(last) == REFUSALS_KEPT + 2
    assert [last[at].text[:7] for at in (0, 1, -1)] == ["ann may", "not let", "ann may"]
    assert [one.text.split()[-1] for one in refusals.last("ann", None)] == ["subscribe", "publish"]
