"""The gate: each kind of credentials, and what the rules of a listener make of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hubbub.auth.asked import AskingGate
from hubbub.auth.gate import Gates
from hubbub.auth.passwords import add_user, remove_user
from hubbub.config.identity import Jwt
from hubbub.config.settings import Listener, Settings, Tls
from hubbub.core.gate import Credentials, Gate
from hubbub.core.rights import (
    BAD_CLIENT,
    BAD_CREDENTIALS,
    CERTIFICATE_REQUIRED,
    NO_CREDENTIALS,
    PUBLISH,
    RECEIVE,
    Rights,
)
from tests.auth.test_scram import Client
from tests.auth.tokens import write

EVERYTHING = Rights()


@pytest.fixture
def gates() -> Iterator[Gates]:
    gates = Gates(EVERYTHING)
    yield gates
    gates.close()


@pytest.fixture
def users(tmp_path: Path) -> str:
    add_user(tmp_path / "users", "ann", b"secret")
    return str(tmp_path / "users")


def listener(address: str = "127.0.0.1:1883", **settings: object) -> Listener:
    """A listener with its rules filled in."""
    made = Listener(address=address, **settings)  # type: ignore[arg-type]
    return Settings(listen=(), listener=(made,)).listeners()[0]


async def asked(
    guard: Gate, user: str = "", secret: bytes = b"", client: str = "c", certificate: str = ""
) -> tuple[Rights | None, str]:
    answer: asyncio.Future[tuple[Rights | None, str]] = asyncio.get_running_loop().create_future()
    credentials = Credentials(client, user, secret, "127.0.0.1", certificate)
    guard.authenticate(credentials, lambda rights, reason: answer.set_result((rights, reason)))
    return await asyncio.wait_for(answer, 10)


async def test_loopback_lets_everybody_in(gates: Gates) -> None:
    guard = gates.gate(listener())
    assert await asked(guard) == (EVERYTHING, "")
    assert await asked(guard, "whoever", b"whatever") == (EVERYTHING, "")


async def test_a_password_file_shuts_the_door(gates: Gates, users: str) -> None:
    guard = gates.gate(listener(password_file=users))
    assert await asked(guard) == (None, NO_CREDENTIALS)
    assert await asked(guard, "ann", b"secret") == (EVERYTHING, "")
    assert await asked(guard, "ann", b"secret") == (EVERYTHING, ""), "now known, no thread"
    assert await asked(guard, "ann", b"wrong") == (None, BAD_CREDENTIALS)
    assert await asked(guard, "ann") == (None, BAD_CREDENTIALS)
    assert await asked(guard, "", b"secret") == (None, BAD_CREDENTIALS)
    assert await asked(guard, "bob", b"secret") == (None, BAD_CREDENTIALS)


async def test_anonymous_clients_beside_users(gates: Gates, users: str) -> None:
    guard = gates.gate(listener(password_file=users, allow_anonymous=True))
    assert await asked(guard) == (EVERYTHING, "")
    assert await asked(guard, "ann", b"wrong") == (None, BAD_CREDENTIALS)


async def test_a_certificate_is_the_user(gates: Gates, users: str) -> None:
    tls = Tls(certificate="x", client_ca="y", identity="common_name")
    guard = gates.gate(listener(tls=tls, password_file=users))
    credentials = Credentials("c", "someone", b"", "127.0.0.1", "ann")
    guard.authenticate(credentials, lambda rights, reason: None)
    assert credentials.user == "ann", "whatever user name it sends"
    assert await asked(guard, certificate="ann") == (EVERYTHING, "")
    assert await asked(guard, "ann", b"secret") == (EVERYTHING, ""), "without one, the password"
    assert await asked(guard) == (None, NO_CREDENTIALS)


async def test_who_is_disabled_does_not_come_in_by_certificate_either(tmp_path: Path) -> None:
    """Nor stays: what is asked of a client without a password was nothing of the file."""
    file = tmp_path / "dynamic-security.json"
    file.write_text('{"clients": [{"username": "ann"}, {"username": "bob"}]}')
    gates = Gates(EVERYTHING, str(file))
    tls = Tls(certificate="x", client_ca="y", identity="common_name")
    guard = gates.gate(listener(tls=tls))
    shown = {name: Credentials("c", "", b"", "", certificate=name) for name in ("ann", "bob")}
    for one in shown.values():
        guard.authenticate(one, lambda rights, reason: None)
        assert guard.still_in(one) and guard.rights_of(one.user, "c") is not None
    assert gates.dynamic is not None
    gates.dynamic.book.clients["ann"].disabled = True
    gates.dynamic.hold()
    assert [guard.still_in(one) for one in shown.values()] == [False, True]
    assert guard.rights_of("ann", "c") is None and guard.vouched(shown["ann"], None) is None
    assert await asked(guard, certificate="ann") == (None, BAD_CREDENTIALS)
    assert (await asked(guard, certificate="bob"))[1] == ""
    gates.close()


async def test_a_certificate_that_is_required(gates: Gates, users: str) -> None:
    tls = Tls(certificate="x", client_ca="y", require_certificate=True)
    guard = gates.gate(listener("0.0.0.0:1", tls=tls))
    assert await asked(guard) == (None, CERTIFICATE_REQUIRED)
    assert await asked(guard, certificate="CN=ann") == (EVERYTHING, "")
    guard = gates.gate(listener(tls=tls, password_file=users))
    assert await asked(guard, "ann", b"secret") == (None, CERTIFICATE_REQUIRED)
    assert await asked(guard, certificate="CN=ann") == (None, NO_CREDENTIALS), "it needs both"
    assert await asked(guard, "ann", b"secret", certificate="CN=x") == (EVERYTHING, "")


async def test_client_ids(gates: Gates) -> None:
    guard = gates.gate(listener(client_prefixes=("dev-", "app-"), require_client_id=True))
    assert await asked(guard, client="dev-1") == (EVERYTHING, "")
    assert await asked(guard, client="other") == (None, BAD_CLIENT)
    guard = gates.gate(listener(require_client_id=True))
    assert await asked(guard, client="") == (None, BAD_CLIENT)


async def test_permissions_by_user(
    gates: Gates, users: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    acl = tmp_path / "acl"
    acl.write_text("user ann\ntopic a\npattern read %c\n")
    guard = gates.gate(listener(password_file=users, acl_file=str(acl)))
    rights, _ = await asked(guard, "ann", b"secret")
    assert rights is not None and rights.may(PUBLISH, "a") and not rights.may(PUBLISH, "b")
    assert rights.may(RECEIVE, "c") and not rights.may(RECEIVE, "d")
    assert not caplog.records
    with caplog.at_level(logging.WARNING, "hubbub"):
        gates.gate(listener(acl_file=str(acl)))
    assert "what a client says it is" in caplog.text


async def test_files_are_read_once_and_again(gates: Gates, users: str, tmp_path: Path) -> None:
    def read_again() -> None:
        for file in gates.files():
            file.read()

    acl = tmp_path / "acl"
    acl.write_text("user ann\ntopic a\nuser bob\ntopic b\n")
    one = gates.gate(listener(password_file=users, acl_file=str(acl)))
    two = gates.gate(listener(password_file=users, acl_file=str(acl), allow_anonymous=True))
    assert (await asked(one, "ann", b"secret"))[0] is (await asked(two, "ann", b"secret"))[0]
    ann, nobody = Credentials("c", "ann", b"secret", ""), Credentials("c", "", b"", "")
    for gate, credentials in ((one, ann), (two, nobody)):
        gate.authenticate(credentials, lambda rights, reason: None)
    assert one.still_in(ann) and two.still_in(nobody)
    add_user(Path(users), "ann", b"other")
    read_again()
    assert not one.still_in(ann) and two.still_in(nobody)
    read_again()
    assert not one.still_in(ann), "however often they are read"
    one.authenticate(ann, lambda rights, reason: None)
    acl.write_text("user bob\ntopic b\n")
    read_again()
    assert not one.still_in(ann), "its rights are another's now"


async def test_a_login_under_way_does_not_outlive_its_password(gates: Gates, users: str) -> None:
    guard = gates.gate(listener(password_file=users))
    for change in (lambda: add_user(Path(users), "ann", b"new"), lambda: None):
        waiting = asyncio.create_task(asked(guard, "ann", b"secret"))
        await asyncio.sleep(0)
        change()
        for file in gates.files():
            file.read()
        assert await waiting == (None, BAD_CREDENTIALS)
    waiting = asyncio.create_task(asked(guard, "bob", b"new"))
    await asyncio.sleep(0)
    add_user(Path(users), "bob", b"new")
    for file in gates.files():
        file.read()
    assert await waiting == (None, BAD_CREDENTIALS), "there was no such user when it asked"
    assert await asked(guard, "bob", b"new") == (EVERYTHING, "")


async def test_a_program_that_thinks_does_not_outlive_the_password(
    gates: Gates, users: str
) -> None:
    thinking: list[Callable[[str], None]] = []
    inner = gates.gate(listener(password_file=users))
    guard = AskingGate(inner, lambda shown, answered: thinking.append(answered), None)
    assert await asked(inner, "ann", b"secret") == (EVERYTHING, "")
    waiting = asyncio.create_task(asked(guard, "ann", b"secret"))
    await asyncio.sleep(0)
    remove_user(Path(users), "ann")
    for file in gates.files():
        file.read()
    thinking[0]("")
    assert await waiting == (None, BAD_CREDENTIALS)


async def test_by_password_over_a_connection_with_a_certificate(gates: Gates, users: str) -> None:
    """What it came in by is what it stands and falls with."""
    tls = Tls(certificate="x", client_ca="y", identity="common_name")
    guard = gates.gate(listener(tls=tls, password_file=users))
    credentials = Credentials("c", "", b"", "", certificate="device")
    exchange = guard.exchange("SCRAM-SHA-256", credentials)
    assert exchange is not None
    client = Client(b"ann", b"secret")
    step = exchange.step(client.final(exchange.step(client.first).data))
    assert step.rights is not None and guard.still_in(credentials)
    device = Credentials("d", "", b"", "", certificate="device")
    guard.authenticate(device, lambda rights, reason: None)
    remove_user(Path(users), "ann")
    for file in gates.files():
        file.read()
    assert not guard.still_in(credentials) and guard.still_in(device)


@pytest.mark.parametrize("change", ["removed", "another password"])
async def test_scram_under_way_does_not_outlive_the_password(
    gates: Gates, users: str, change: str
) -> None:
    exchange = gates.gate(listener(password_file=users)).exchange(
        "SCRAM-SHA-256", Credentials("c", "", b"", "")
    )
    assert exchange is not None
    client = Client(b"ann", b"secret")
    final = client.final(exchange.step(client.first).data)
    if change == "removed":
        remove_user(Path(users), "ann")
    else:
        add_user(Path(users), "ann", b"new")
    for file in gates.files():
        file.read()
    step = exchange.step(final)
    assert step.done and step.rights is None and step.reason == BAD_CREDENTIALS


async def test_scram_through_the_gate(gates: Gates, users: str) -> None:
    guard = gates.gate(listener(password_file=users))
    credentials = Credentials("c", "", b"", "")
    assert guard.exchange("PLAIN", credentials) is None
    exchange = guard.exchange("SCRAM-SHA-256", credentials)
    assert exchange is not None
    assert not exchange.step(b"n,,n=ann,r=x").done
    assert gates.gate(listener()).exchange("SCRAM-SHA-256", credentials) is None


# Whom another process of the hub let in


async def test_who_was_let_in_elsewhere_has_its_rights_until_the_files_say_otherwise(
    gates: Gates, users: str, tmp_path: Path
) -> None:
    acl = tmp_path / "acl"
    acl.write_text("user ann\ntopic a\nuser eve\ntopic b\n")
    guard = gates.gate(listener(password_file=users, acl_file=str(acl)))
    ann, eve = (Credentials("", name, b"", "127.0.0.1") for name in ("ann", "eve"))
    rights = guard.vouched(ann, None)
    assert rights is not None and rights.may(PUBLISH, "a") and not rights.may(PUBLISH, "b")
    assert guard.still_in(ann)
    assert guard.vouched(eve, None) is None, "who has no account here"
    assert guard.vouched(eve, ("readwrite #",)) is None, "no token counts here"
    add_user(Path(users), "ann", b"other")
    for file in gates.files():
        file.read()
    assert not guard.still_in(ann)


async def test_who_showed_a_token_elsewhere_has_what_that_says_until_it_is_over(
    gates: Gates, tmp_path: Path
) -> None:
    keys = write(tmp_path / "jwks.json", "EdDSA")
    jwt = Jwt(keys=keys, algorithms=("EdDSA",), acl_claim="acl", leeway_seconds=0.0)
    guard = gates.gate(listener(jwt=jwt))
    ann = Credentials("", "ann", b"", "127.0.0.1")
    ann.expires = time.time() + 60
    rights = guard.vouched(ann, ("write a",))
    assert rights is not None and rights.may(PUBLISH, "a") and not rights.may(PUBLISH, "b")
    assert guard.still_in(ann)
    ann.expires = time.time() - 1
    assert guard.vouched(ann, ("write a",)) is not None and not guard.still_in(ann)
