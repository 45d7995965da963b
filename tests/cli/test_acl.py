"""`hubbub acl check`: what it says, and what the door does with the same file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hubbub.auth.acl import Acl
from hubbub.cli.acl import app
from hubbub.core.rights import VERBS
from hubbub.errors import SettingError

RULES = """\
topic read public/#
user ann
topic readwrite house/#
topic deny house/safe
topic read $queue/jobs
pattern write devices/%c/state
"""


@pytest.fixture
def acl(tmp_path: Path) -> Path:
    file = tmp_path / "acl"
    file.write_text(RULES)
    return file


def check(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["check", *words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output.strip()


@pytest.mark.parametrize(
    ("asked", "code", "says"),
    [
        ("ann publish house/door", 0, "ann may publish house/door: {}:3 (readwrite house/#)"),
        ("ann publish house/safe", 1, "ann may not publish house/safe: {}:4 (deny house/safe)"),
        ("ann subscribe house/#", 0, "ann may subscribe house/#: {}:3 (readwrite house/#)"),
        ("ann bind house/#", 1, "ann may not bind house/#: {}:4 (deny house/safe)"),
        ("ann consume $queue/jobs", 0, "ann may consume $queue/jobs: {}:5 (read $queue/jobs)"),
        ("ann enqueue $queue/jobs", 1, "no line of {} permits it"),
        ("bob publish devices/b1/state", 1, "no line of {} permits it"),
        ("bob publish devices/b1/state --client b1", 0, "{}:6 (write devices/%c/state)"),
    ],
)
def test_what_it_says(acl: Path, asked: str, code: int, says: str) -> None:
    found, said = check(*asked.split(), "--file", str(acl))
    assert found == code and says.format(acl) in said


def test_of_who_is_managed_the_role_decides(tmp_path: Path) -> None:
    """It said that everybody may do everything: there is no acl_file beside dynamic security."""
    file, config = tmp_path / "dynamic.json", tmp_path / "hub.toml"
    config.write_text(f'dynamic_security = "{file}"\n')
    rule = {"acltype": "publishClientSend", "topic": "house/#", "allow": True, "priority": 0}
    file.write_text(json.dumps({
        "defaultACLAccess": {"publishClientSend": False},
        "clients": [{"username": "kitchen", "roles": [{"rolename": "sensors"}]}],
        "roles": [{"rolename": "sensors", "acls": [rule]}],
    }))  # fmt: skip
    may = "kitchen may publish house/1: role sensors (publishClientSend house/#: allow)"
    assert check("kitchen", "publish", "house/1", "-c", str(config)) == (0, may)
    code, said = check("kitchen", "publish", "garden/1", "-c", str(config))
    assert code == 1 and "kitchen may not publish garden/1: defaultACLAccess" in said
    code, said = check("nobody", "publish", "house/1", "-c", str(config))
    assert code == 1 and said.startswith("nobody may not publish house/1")


def test_each_listener_may_have_a_file_of_its_own(acl: Path, tmp_path: Path) -> None:
    config = tmp_path / "hub.toml"
    one = f'[[listener]]\naddress = "127.0.0.1:1"\nacl_file = "{acl}"\n'
    config.write_text(f"listen = []\n{one}")
    assert check("ann", "publish", "house/door", "-c", str(config))[0] == 0
    config.write_text(one)
    with pytest.raises(SettingError, match="more than one acl_file, say --file: none for"):
        check("ann", "publish", "house/door", "-c", str(config))


def test_a_client_without_a_user(acl: Path) -> None:
    assert check("", "receive", "public/a", "-f", str(acl)) == (
        0, f"a client without a user name may receive public/a: {acl}:1 (read public/#)"
    )  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", ["house/door", "house/safe", "house/#", "$queue/jobs", "x"])
def test_it_is_what_the_door_does(acl: Path, verb: str, name: str) -> None:
    allowed = Acl(acl).rights("ann", "").may(verb, name)
    assert check("ann", verb, name, "--file", str(acl))[0] == (0 if allowed else 1)


def test_the_file_may_be_named_by_the_configuration(acl: Path, tmp_path: Path) -> None:
    config = tmp_path / "hubbub.toml"
    config.write_text(f'acl_file = "{acl}"\n')
    assert check("ann", "publish", "house/door", "-c", str(config))[0] == 0
    config.write_text("")
    with pytest.raises(SettingError, match="has no acl_file"):
        check("ann", "publish", "house/door", "-c", str(config))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("ann", "write", "a", "-f", "x"), "'write' is no verb: expected one of publish, "),
        (("ann", "publish", "a/#b", "-f", "x"), "neither a topic nor a filter"),
        (("ann", "publish", "a"), "expected --file ACL"),
        (("ann", "publish", "a", "-f", "/nowhere/x"), "cannot read the permissions"),
    ],
)
def test_what_it_refuses(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        check(*words)
