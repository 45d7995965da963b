"""SCRAM-SHA-256 from the client's side: what RFC 5802 says, and everything that is not that."""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.auth import scram
from hubbub.auth.guesses import Guesses
from hubbub.auth.passwords import Passwords, add_user
from hubbub.auth.scram import ROUNDS, Accounts, Scram, Verifier, make_verifier, read_verifier
from hubbub.core.gate import Step
from hubbub.core.rights import BAD_CREDENTIALS, TOO_BUSY, Rights

RIGHTS = Rights()
ANN = make_verifier(b"pencil", 4096)


class Users(Accounts):
    def verifier(self, user: str) -> Verifier:
        assert ANN is not None
        return ANN if user == "ann,=" else Verifier(4096, b"salt", bytes(32), bytes(32))


def admit(user: str) -> tuple[Rights | None, str]:
    return (RIGHTS, "") if user == "ann,=" else (None, "not you")


def exchange(guesses: Guesses | None = None) -> Scram:
    return Scram(Users(), admit, guesses or Guesses(lambda: 0.0), "192.0.2.1")


def attributes(message: bytes) -> dict[bytes, bytes]:
    return dict(part.split(b"=", 1) for part in message.split(b","))


class Client:
    """The client's arithmetic, written from the RFC."""

    def __init__(self, user: bytes = b"ann=2C=3D", password: bytes = b"pencil") -> None:
        self.password = password
        self.bare = b"n=" + user + b",r=client-nonce"
        self.first = b"n,," + self.bare

    def final(self, answer: bytes, binding: bytes = b"n,,") -> bytes:
        found = attributes(answer)
        salt, rounds = base64.b64decode(found[b"s"]), int(found[b"i"])
        salted = hashlib.pbkdf2_hmac("sha256", self.password, salt, rounds)
        key = hmac.digest(salted, b"Client Key", "sha256")
        without_proof = b"c=" + base64.b64encode(binding) + b",r=" + found[b"r"]
        self.messages = b",".join((self.bare, answer, without_proof))
        signature = hmac.digest(hashlib.sha256(key).digest(), self.messages, "sha256")
        self.server_key = hmac.digest(salted, b"Server Key", "sha256")
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        return without_proof + b",p=" + base64.b64encode(proof)


def test_the_password_proves_itself_without_being_sent() -> None:
    client, server = Client(), exchange()
    first = server.step(client.first)
    assert not first.done and attributes(first.data)[b"i"] == b"4096"
    assert attributes(first.data)[b"r"].startswith(b"client-nonce")
    last = server.step(client.final(first.data))
    assert last.done and last.rights is RIGHTS and last.reason == ""
    signature = hmac.digest(client.server_key, client.messages, "sha256")
    assert last.data == b"v=" + base64.b64encode(signature), "the server proves itself too"


def test_the_example_of_rfc_7677(monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 3: user "user", password "pencil"."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    monkeypatch.setattr("os.urandom", lambda size: salt)
    verifier = make_verifier(b"pencil", 4096)
    assert verifier is not None

    class Example(Accounts):
        def verifier(self, user: str) -> Verifier:
            assert verifier is not None
            return verifier

    server = Scram(Example(), lambda user: (RIGHTS, ""), Guesses(lambda: 0.0))
    monkeypatch.setattr("base64.b64encode", _with_nonce(base64.b64encode))
    first = server.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first.data == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    last = server.step(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert last.data == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert last.rights is RIGHTS


def _with_nonce(real: object) -> object:
    """The first thing that is encoded is the server's half of the nonce."""
    answers = [b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"]
    return lambda data: answers.pop() if answers else real(data)  # type: ignore[operator]


@pytest.mark.parametrize("client", [Client(password=b"crayon"), Client(b"nobody")])
def test_a_wrong_password_and_an_unknown_user_look_the_same(client: Client) -> None:
    server = exchange()
    first = server.step(client.first)
    assert not first.done and set(attributes(first.data)) == {b"r", b"s", b"i"}
    assert _refusal(server.step(client.final(first.data))) == BAD_CREDENTIALS


def test_an_account_with_another_hash_looks_like_one_that_does_not_exist(tmp_path: Path) -> None:
    users = tmp_path / "users"
    add_user(users, "other", b"secret", scram=False)
    accounts = Passwords(users)
    for user in ("other", "nobody"):
        once, again = accounts.verifier(user), accounts.verifier(user)
        assert once == again and once.rounds == ROUNDS and len(once.salt) == 16
        client = Client(user.encode(), b"secret")
        server = Scram(accounts, admit, Guesses(lambda: 0.0))
        first = server.step(client.first)
        assert _refusal(server.step(client.final(first.data))) == BAD_CREDENTIALS


def test_guesses_count_and_are_refused_before_anything_is_told() -> None:
    guesses = Guesses(lambda: 0.0)
    for _ in range(10):
        client, server = Client(password=b"guess"), exchange(guesses)
        first = server.step(client.first)
        assert _refusal(server.step(client.final(first.data))) == BAD_CREDENTIALS
    assert _refusal(exchange(guesses).step(Client().first)) == TOO_BUSY
    elsewhere = Scram(Users(), admit, guesses, "192.0.2.2")
    assert not elsewhere.step(Client().first).done


def test_channel_binding_is_not_offered() -> None:
    assert "channel binding" in _refusal(exchange().step(b"p=tls-unique,,n=ann,r=x"))
    client, server = Client(), exchange()
    first = server.step(client.first)
    assert "channel binding" in _refusal(server.step(client.final(first.data, b"y,,")))


@pytest.mark.parametrize(
    "first",
    [
        b"", b",,", b"n,,", b"n,,n=ann", b"n,,n=,r=x", b"n,,r=x,n=ann", b"x,,n=ann,r=x",
        b"n,,n=ann,r=", b"n,,n=a=2Zb,r=x", b"n,,n=\xff,r=x", b"n,b,n=ann,r=x",
        b"n,,m=1,n=ann,r=x", b"n,,n=ann,r=\x07", b"n,," + b"n=" + b"a" * 2000 + b",r=x",
    ],
)  # fmt: skip
def test_a_first_message_that_is_none(first: bytes) -> None:
    assert "not a SCRAM-SHA-256 message" in _refusal(exchange().step(first))


def test_to_act_for_another_user() -> None:
    assert "another user" in _refusal(exchange().step(b"n,a=bob,n=ann,r=x"))
    assert not exchange().step(b"n,a=ann=2C=3D,n=ann=2C=3D,r=x").done


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_refused(data: bytes, first: bool) -> None:
    server = exchange()
    if not first:
        server.step(Client().first)
    step = server.step(data)
    assert step.rights is None
    assert step.reason or (first and not step.done)


def test_a_final_message_with_another_nonce() -> None:
    client, server = Client(), exchange()
    first = server.step(client.first)
    final = client.final(first.data).replace(b"client-nonce", b"client-n0nce")
    assert _refusal(server.step(final))


def test_a_verifier_is_text_and_back() -> None:
    assert ANN is not None and read_verifier(str(ANN)) == ANN
    assert str(ANN).startswith("SCRAM-SHA-256$4096:")


@pytest.mark.parametrize(
    ("secret", "prepared"),
    [
        ("I\u00adX", "IX"), ("user", "user"), ("\u00aa", "a"), ("\u2168", "IX"), ("\u0007", None),
        ("\u0627\u0031", None), ("a\u00a0b", "a b"), ("\u0627\u0031\u0628", "\u0627\u0031\u0628"),
    ],
)  # fmt: skip
def test_saslprep_as_rfc_4013_shows_it(secret: str, prepared: str | None) -> None:
    assert scram.prepare(secret.encode()) == (prepared.encode() if prepared else None)


def _refusal(step: Step) -> str:
    assert step.done and step.rights is None and not step.data
    return step.reason
