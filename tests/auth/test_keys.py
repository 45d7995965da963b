"""Keys that clients share with the hub: the file, and what a Python without them says."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from hubbub.auth import certificates
from hubbub.auth.gate import Gates
from hubbub.auth.keys import KeyedContext, Keys
from hubbub.config.settings import Listener, Tls
from hubbub.core.gate import Credentials, Opening
from hubbub.core.rights import Rights
from hubbub.errors import SettingError
from tests.certificates import Authority


def test_a_file_of_mosquittos(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# devices\nann:00ff\n\nof:house:0A0b\n")
    keys = Keys(file)
    assert keys.by_identity == {"ann": b"\x00\xff", "of:house": b"\x0a\x0b"}
    file.write_text("ann:xyz\n")
    with pytest.raises(SettingError, match="keys:1: expected IDENTITY:KEY"):
        keys.read()
    assert len(keys.by_identity) == 2, "it goes on with the old"
    for wrong in ("ann", "ann:", ":00ff", "ann:0", f"ann:{'00' * 65}"):
        file.write_text(wrong)
        with pytest.raises(SettingError, match="expected IDENTITY:KEY"):
            Keys(file)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"keys: No such file"):
        Keys(tmp_path / "keys")


@pytest.mark.skipif(getattr(ssl, "HAS_PSK", False), reason="this Python has shared keys")
def test_an_older_python_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"need Python 3\.13 or later; start the hub with"):
        certificates.context(Tls(psk_file=str(tmp_path / "keys")))


def test_a_certificate_without_its_key_says_that(tmp_path: Path) -> None:
    file = Authority(tmp_path / "ca").file
    with pytest.raises(SettingError, match=r"authority.pem' has no private key in it: .* tls.key"):
        certificates.context(Tls(certificate=str(file)))
    for text in (None, b"", file.read_bytes().replace(b"BEGIN", b"BEGUN")):
        other = tmp_path / "other.pem"
        if text is not None:
            other.write_bytes(text)
        why = "cannot be used: No such file" if text is None else "has no certificate in it"
        with pytest.raises(SettingError, match=rf"^tls.certificate = '.*other.pem' {why}"):
            certificates.context(Tls(certificate=str(other)))


def test_of_a_certificate_and_its_key_it_names_the_one_that_is_wrong(tmp_path: Path) -> None:
    file = str(Authority(tmp_path / "ca").file)
    for key, why in (
        (file, "authority.pem' has no private key in it"),
        (str(tmp_path / "nowhere"), "nowhere' cannot be used: No such file"),
    ):
        with pytest.raises(SettingError, match=rf"^tls.key = '.*{why}"):
            certificates.context(Tls(certificate=file, key=key))


@pytest.mark.parametrize(
    ("tls", "complaint"),
    [
        (Tls(psk_file="x", psk_hint="y", identity="common_name", only=True), ""),
        (Tls(psk_hint="y"), "tls.psk_hint needs tls.certificate"),
        (Tls(certificate="x", psk_hint="y"), "tls.psk_hint needs tls.psk_file"),
        (Tls(psk_file="x", key="y"), "tls.key needs tls.certificate"),
        (Tls(psk_file="x", client_ca="y"), "tls.client_ca needs tls.certificate"),
        (Tls(psk_file="x", crl="y"), "tls.crl needs tls.client_ca"),
        (Tls(certificate="x", identity="subject"), "tls.identity needs tls.client_ca"),
    ],
)
def test_what_fits_together(tls: Tls, complaint: str) -> None:
    assert tls.complaint() == complaint


def test_the_identity_is_the_user_until_its_key_is_another(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("ann:00ff\n")
    gates = Gates(Rights())
    gate = gates.gate(Listener(
        address="127.0.0.1:1", tls=Tls(psk_file=str(file), identity="common_name"),
        allow_anonymous=False,
    ))  # fmt: skip
    opening = Opening(gate)
    opening.shared = "ann"
    shown = Credentials("c", "", b"", "", opening=opening)
    answers: list[tuple[Rights | None, str]] = []
    gate.authenticate(shown, lambda rights, reason: answers.append((rights, reason)))
    assert answers == [(gates.everything, "")] and shown.user == "ann"
    assert gate.still_in(shown)
    for text in ("ann:0000\n", "bob:00ff\n"):
        file.write_text(text)
        for one in gates.files():
            one.read()
        assert not gate.still_in(shown)


class Made:
    """A handshake that is done, in which a key was asked for."""

    session = None

    def __init__(self, version: str, reused: bool) -> None:
        self.identity, self._version, self.session_reused = "ann", version, reused

    def version(self) -> str:
        return self._version


@pytest.mark.parametrize(
    ("version", "reused", "known"),
    [("TLSv1.3", True, "ann"), ("TLSv1.3", False, ""), ("TLSv1.2", False, "ann")],
)
def test_whose_key_was_asked_for_and_not_used_is_not_known(
    version: str, reused: bool, known: str
) -> None:
    """OpenSSL asks, and goes on with its certificate if the cipher does not fit: any key would do
    for any name.
    """
    made = Made(version, reused)
    KeyedContext(ssl.PROTOCOL_TLS_SERVER).shaken(made)
    assert made.identity == known
