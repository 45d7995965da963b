"""Password files: who the users are and whether a secret is theirs.

    ann:$argon2id$v=19$m=19456,t=2,p=1$…$…:SCRAM-SHA-256$20000:…$…:…     ours
    bob:$7$101$…$…                                              mosquitto's: PBKDF2-SHA-512
    cid:$6$…$…                                                  mosquitto's older: SHA-512

One line a user: name, hash, and beside our own hash a verifier for SCRAM, unless the password has
characters that SCRAM forbids. The gate asks whether a secret fits; `hubbub passwd` edits the
files. `verify` is slow on purpose and meant for a thread. It costs the same for users that do not
exist, so that nobody can find out by its time who does. Nothing here ever keeps a secret.
"""

from __future__ import annotations

import base64
import hmac
import logging
import os
import tempfile
import zlib
from collections.abc import Callable
from hashlib import pbkdf2_hmac, sha256, sha512
from pathlib import Path
from typing import Final, NamedTuple

import argon2

from hubbub.auth.scram import ROUNDS, Accounts, Verifier, make_verifier, read_verifier
from hubbub.config.sought import reason
from hubbub.errors import SettingError

log = logging.getLogger("hubbub.auth")

_REMEMBERED: Final = 10_000  # secrets that were right, to be found right again without the work

# OWASP's smallest recommendation: 19 MiB and 25 ms a login, what a reconnect storm can bear.
_HASHER: Final = argon2.PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)


class Account(NamedTuple):
    """`client`: the only client id that it may come in with, "" for any."""

    hash: str
    verifier: Verifier | None
    client: str = ""


def _argon2(stored: str, secret: bytes) -> bool:
    try:
        return _HASHER.verify(stored, secret)
    except argon2.exceptions.VerificationError:
        return False


def _pbkdf2_sha512(stored: str, secret: bytes) -> bool:
    rounds, salt, digest = stored.split("$")[2:]
    wanted = base64.b64decode(digest)
    found = pbkdf2_hmac("sha512", secret, base64.b64decode(salt), int(rounds), len(wanted))
    return hmac.compare_digest(found, wanted)


def _sha512(stored: str, secret: bytes) -> bool:
    salt, digest = stored.split("$")[2:]
    found = sha512(secret + base64.b64decode(salt)).digest()
    return hmac.compare_digest(found, base64.b64decode(digest))


# What a hash begins with, and who checks it.
_KINDS: Final[dict[str, Callable[[str, bytes], bool]]] = {
    "$argon2id$": _argon2,
    "$7$": _pbkdf2_sha512,
    "$6$": _sha512,
}


def _kind(stored: str) -> Callable[[str, bytes], bool] | None:
    return next((check for start, check in _KINDS.items() if stored.startswith(start)), None)


class Passwords(Accounts):
    """The users of one file. `read` again when the file changed; SettingError leaves the old."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.users: dict[str, Account] = {}
        self._right: dict[str, bytes] = {}
        self._key = os.urandom(32)
        self._nobody = ""
        self.read()

    def read(self) -> None:
        self._forget(read_users(self.file))

    def _forget(self, users: dict[str, Account]) -> None:
        """These are the users from now on."""
        self.users = users
        self._right.clear()
        if not self.users:  # a secret nobody knows, for users that do not exist
            self._nobody = _HASHER.hash(os.urandom(32))

    def is_disabled(self, user: str) -> bool:
        """Whether it is a user who is kept out, however it shows who it is."""
        return False

    def known(self, user: str, secret: bytes) -> bool:
        """Whether this secret was found right before; quick, so it needs no thread."""
        right = self._right.get(user)
        return right is not None and hmac.compare_digest(right, self._mark(secret))

    def verify(self, user: str, secret: bytes) -> bool:
        """Whether the secret is the user's. Takes milliseconds of work; call it in a thread."""
        account = self.users.get(user)
        stored = account.hash if account is not None else self._decoy(user)
        check = _kind(stored)
        right = check is not None and check(stored, secret) and account is not None
        if right and self.users.get(user) is account:
            if len(self._right) >= _REMEMBERED:
                self._right.clear()
            self._right[user] = self._mark(secret)
        return right

    def verifier(self, user: str) -> Verifier:
        account = self.users.get(user)
        if account is not None and account.verifier is not None:
            return account.verifier
        if account is not None:  # its owner should know, and nobody else
            log.info("%s has no verifier for SCRAM-SHA-256; `hubbub passwd add` makes one", user)
        salt = hmac.digest(self._key, user.encode(), "sha256")[:16]  # the same at every try
        return Verifier(ROUNDS, salt, bytes(32), bytes(32))

    def _mark(self, secret: bytes) -> bytes:
        return hmac.digest(self._key, secret, "sha256")

    def _decoy(self, user: str) -> str:
        """The hash of some other user, whose check costs what this one's would."""
        if not self.users:
            return self._nobody
        number = zlib.crc32(sha256(self._key + user.encode(errors="replace")).digest())
        names = list(self.users)
        return self.users[names[number % len(names)]].hash


def read_users(file: Path) -> dict[str, Account]:
    """The accounts by name; SettingError says which line is none."""
    found = {}
    for number, line in enumerate(_lines(file), 1):
        if line.strip() and not line.startswith("#"):
            name, account = _parse(line.strip(), f"{file}:{number}")
            found[name] = account
    return found


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text("utf-8").splitlines()
    except OSError as error:
        raise SettingError(f"cannot read the password file {file}: {reason(file, error)}") from None
    except UnicodeDecodeError:
        raise SettingError(f"the password file {file} is not UTF-8 text") from None


def _parse(line: str, place: str) -> tuple[str, Account]:
    name, _, rest = line.partition(":")
    stored, _, verifier = rest.partition(":")
    if not name or _kind(stored) is None:
        raise SettingError(
            f"{place}: expected NAME:HASH with a hash that begins with one of "
            f"{', '.join(_KINDS)}. `hubbub passwd add FILE NAME` writes such a line"
        )
    try:
        _check_shape(stored)
        return name, Account(stored, read_verifier(verifier) if verifier else None)
    except (ValueError, argon2.exceptions.InvalidHash):
        raise SettingError(f"{place}: the line of {name} is damaged; set it again") from None


def _check_shape(stored: str) -> None:
    """ValueError now rather than at the first login."""
    if stored.startswith("$argon2id$"):
        argon2.extract_parameters(stored)
        return
    salt, digest = stored.split("$")[-2:]
    base64.b64decode(salt, validate=True)
    if len(base64.b64decode(digest, validate=True)) != 64:
        raise ValueError(stored)
    if stored.startswith("$7$") and int(stored.split("$")[2]) < 1:
        raise ValueError(stored)


def add_user(file: Path, name: str, secret: bytes, scram: bool = True) -> bool:
    """Add a user or set another password; the file is made if it is not there.

    False: the account cannot use SCRAM, because of its password or because that was asked for.
    """
    if not name or ":" in name or name.startswith("#") or not name.isprintable():
        raise SettingError(f"{name!r} cannot be a user: no colon, no leading #, printable")
    if not secret:
        raise SettingError("an empty password lets everybody in; choose another")
    verifier = make_verifier(secret) if scram else None
    line = f"{name}:{_HASHER.hash(secret)}" + (f":{verifier}" if verifier else "")
    lines = _lines(file) if file.exists() else []
    _write(file, [*(one for one in lines if not _is_of(one, name)), line])
    return verifier is not None


def remove_user(file: Path, name: str) -> None:
    """SettingError if there is no such user."""
    lines = _lines(file)
    kept = [line for line in lines if not _is_of(line, name)]
    if len(kept) == len(lines):
        raise SettingError(f"{file} has no user {name}")
    _write(file, kept)


def _is_of(line: str, name: str) -> bool:
    return line.partition(":")[0] == name


def _write(file: Path, lines: list[str]) -> None:
    write_whole(file, "".join(f"{line}\n" for line in lines))


def write_whole(file: Path, text: str) -> None:
    """Whole or not at all, for the owner's eyes; a hub that reads it meanwhile sees either."""
    try:
        before = file.stat() if file.exists() else None
        number, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        with os.fdopen(number, "w", encoding="utf-8") as beside:
            if before is not None:  # it stays readable to whom it was
                os.fchown(number, before.st_uid, before.st_gid)
                os.fchmod(number, before.st_mode & 0o777)
            beside.write(text)
            beside.flush()
            os.fsync(number)
        os.replace(name, file)
        _sync_folder(file.parent)
    except OSError as error:
        raise SettingError(f"cannot write {file}: {error.strerror}") from None


def _sync_folder(folder: Path) -> None:
    """The new name is safe too."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
