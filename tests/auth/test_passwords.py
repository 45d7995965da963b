"""Password files: ours and mosquitto's, edited and checked."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from hubbub.auth.passwords import Passwords, add_user, read_users, remove_user
from hubbub.errors import SettingError

# Made by mosquitto_passwd 2.0 for the password "secret".
MOSQUITTO = """\
ann:$7$101$XJUJPRVkw3Onv0DB$1IpmS4ZB948Tx4XCXzm1RqBp9zBc7cHllaQ8CuyzWp1g8duXG/xgpj48KG47dymzPK3RlJwXXElk8ebzuL0Kxw==
bob:$6$S2ysBzmwXmBYFmGO$/PAJTGcZuyDFhW1nUfBSG8pYkoM5HJBCH8RAKaTiLX1BKVYI8rgvuyAPWMuytSH5I8JM4pe8BC3eqm3UWMMhfw==
"""  # noqa: E501


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "users"


def test_a_user_of_ours(file: Path) -> None:
    assert add_user(file, "ann", b"secret")
    assert file.stat().st_mode & 0o777 == 0o600
    users = Passwords(file)
    assert users.verify("ann", b"secret")
    assert not users.verify("ann", b"Secret")
    assert not users.verify("ann", b"")
    assert not users.verify("bob", b"secret")
    assert users.verifier("ann") is not None
    assert "$argon2id$" in file.read_text() and "secret" not in file.read_text()


@pytest.mark.parametrize("user", ["ann", "bob"])
def test_users_of_mosquitto(file: Path, user: str) -> None:
    file.write_text("# made by hand\n\n" + MOSQUITTO)
    users = Passwords(file)
    assert users.verify(user, b"secret")
    assert not users.verify(user, b"secrets")
    found = users.verifier(user)  # a hash of another kind says nothing to SCRAM
    assert found == users.verifier(user) and found.stored_key == bytes(32)


@pytest.mark.skipif(
    shutil.which("mosquitto_passwd") is None, reason="no mosquitto_passwd here: apt install it"
)
@pytest.mark.parametrize("kind", ["sha512", "sha512-pbkdf2"])
def test_mosquittos_own_tool_beside_ours(file: Path, kind: str) -> None:
    add_user(file, "ours", b"one")
    command = ["mosquitto_passwd", "-H", kind, "-b", str(file), "theirs", "two"]
    subprocess.run(command, check=True, timeout=20, capture_output=True)
    add_user(file, "more", "ünï".encode())
    users = Passwords(file)
    assert users.verify("ours", b"one")
    assert users.verify("theirs", b"two")
    assert users.verify("more", "ünï".encode())
    assert list(users.users) == ["ours", "theirs", "more"]


def test_a_password_that_was_right_is_known_until_it_changes(file: Path) -> None:
    add_user(file, "ann", b"one")
    users = Passwords(file)
    assert not users.known("ann", b"one")
    users.verify("ann", b"one")
    assert users.known("ann", b"one")
    assert not users.known("ann", b"two")
    add_user(file, "ann", b"two")
    add_user(file, "bob", b"three")
    users.read()
    assert not users.known("ann", b"one")


def test_editing_keeps_what_it_does_not_understand(file: Path) -> None:
    file.write_text("# ours\n" + MOSQUITTO)
    file.chmod(0o640)
    add_user(file, "ann", b"new")
    remove_user(file, "bob")
    first, second = file.read_text().splitlines()
    assert first == "# ours"
    assert second.startswith("ann:$argon2id$")
    assert file.stat().st_mode & 0o777 == 0o640
    assert list(file.parent.iterdir()) == [file]


def test_an_unknown_user_costs_what_a_known_one_does(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some other user's hash is computed, and the answer is no even if it fits."""
    digest = base64.b64encode(hashlib.sha512(b"x" + b"salt").digest()).decode()
    file.write_text(f"ann:$6${base64.b64encode(b'salt').decode()}${digest}\n")
    computed: list[bytes] = []

    def computing(data: bytes) -> object:
        computed.append(data)
        return hashlib.new("sha512", data)

    monkeypatch.setattr("hubbub.auth.passwords.sha512", computing)
    users = Passwords(file)
    assert users.verify("ann", b"x")
    assert not users.verify("nobody", b"x")
    assert computed == [b"xsalt", b"xsalt"]


def test_nobody_can_log_in_with_an_empty_file(file: Path) -> None:
    file.write_text("")
    assert not Passwords(file).verify("ann", b"")


@pytest.mark.parametrize("name", ["", "a:b", "#a", "a\nb"])
def test_a_name_that_cannot_be_a_user(file: Path, name: str) -> None:
    with pytest.raises(SettingError, match="cannot be a user"):
        add_user(file, name, b"x")


def test_a_password_that_scram_forbids(file: Path) -> None:
    assert not add_user(file, "ann", b"\xff\xfe")
    assert not add_user(file, "bob", b"fine", scram=False)
    users = Passwords(file)
    assert users.verify("ann", b"\xff\xfe")
    assert users.verifier("ann").stored_key == users.verifier("bob").stored_key == bytes(32)


@pytest.mark.parametrize(
    "line",
    [
        "ann", "ann:", "ann:plain", ":$6$x$y", "ann:$5$x$y", "ann:$6$x", "ann:$6$eA==$eA==",
        "ann:$7$0$eA==$" + "A" * 86 + "==", "ann:$7$x$eA==$eA==", "ann:$argon2id$v=19",
        "ann:$6$eA==$" + "A" * 86 + "==:SCRAM",
    ],
)  # fmt: skip
def test_a_line_that_is_no_account_is_named(file: Path, line: str) -> None:
    file.write_text(f"# one\n{line}\n")
    with pytest.raises(SettingError, match="users:2: "):
        read_users(file)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="cannot read the password file .*none"):
        read_users(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match="not UTF-8"):
        read_users(tmp_path / "binary")
    with pytest.raises(SettingError, match="no user zed"):
        (tmp_path / "empty").write_text("")
        remove_user(tmp_path / "empty", "zed")
    with pytest.raises(SettingError, match="cannot write"):
        add_user(tmp_path / "no" / "folder", "ann", b"x")


def test_a_damaged_file_leaves_the_old_users(file: Path) -> None:
    add_user(file, "ann", b"x")
    users = Passwords(file)
    file.write_text("nonsense")
    with pytest.raises(SettingError):
        users.read()
    assert users.verify("ann", b"x")
