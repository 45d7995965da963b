"""`$CONTROL/dynamic-security/v1`: who may ask, what holds when, what is kept, what never is."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub import Hub
from hubbub.auth import dynamic_commands
from hubbub.auth.dynamic import Book, Dynamic, read_book, said
from hubbub.auth.gate import DISABLED
from hubbub.config.settings import Journal, Settings
from hubbub.config.sources import load
from hubbub.core.gate import Credentials
from hubbub.core.rights import BAD_CLIENT, BAD_CREDENTIALS, VERBS
from hubbub.errors import SettingError
from hubbub.runtime.control import RESPONSE, TOPIC
from tests.clients import Mqtt

ADMIN_RULES = [
    ("publishClientSend", "$CONTROL/dynamic-security/#"),
    ("publishClientReceive", "$CONTROL/dynamic-security/#"),
    ("subscribePattern", "$CONTROL/dynamic-security/#"),
]


def beginning(file: Path) -> Path:
    """A file with one administrator, as `mosquitto_ctrl dynsec init` makes one."""
    rules = [{"acltype": kind, "topic": topic, "allow": True} for kind, topic in ADMIN_RULES]
    client: dict[str, Any] = {
        "username": "admin",
        "textName": "An admin",
        "roles": [{"rolename": "admin"}],
    }
    book = read_book(
        json.dumps({"clients": [client], "roles": [{"rolename": "admin", "acls": rules}]}), "x"
    )
    book.clients["admin"].set_password("adminpw")
    file.write_text("{}")
    dynamic = Dynamic(file)
    dynamic.book = book
    dynamic.save()
    return file


@asynccontextmanager
async def hub(tmp_path: Path, **more: Any) -> AsyncIterator[Hub]:
    file = tmp_path / "dynamic-security.json"
    if not file.exists():
        beginning(file)
    given = {"listen": ("127.0.0.1:0",), "data": str(tmp_path / "data"), **more}
    async with Hub(Settings(dynamic_security=str(file), **given)) as made:
        yield made


class Admin:
    """A client that asks and gets the answers."""

    def __init__(self, mqtt: Mqtt) -> None:
        self.mqtt = mqtt

    @classmethod
    async def log_in(cls, hub: Hub, user: str = "admin", secret: str = "adminpw") -> Admin:
        made = cls(Mqtt(hub, user + "-ctl", user, secret))
        assert await made.mqtt.open() == 0
        assert await made.mqtt.subscribe(RESPONSE) == 1
        return made

    async def ask(self, *commands: dict[str, Any]) -> list[dict[str, Any]]:
        payload = json.dumps({"commands": commands}).encode()
        assert await self.mqtt.publish(TOPIC, payload) == 0
        async with asyncio.timeout(10):
            topic, answer = await self.mqtt.heard.get()
        assert topic == RESPONSE
        found: list[dict[str, Any]] = json.loads(answer)["responses"]
        return found

    async def do(self, *commands: dict[str, Any]) -> None:
        assert [one for one in await self.ask(*commands) if "error" in one] == []

    def close(self) -> None:
        self.mqtt.paho.disconnect()
        self.mqtt.paho.loop_stop()


def create(user: str, secret: str = "pw", **more: Any) -> dict[str, Any]:
    return {"command": "createClient", "username": user, "password": secret, **more}


def role(name: str, *rules: str) -> dict[str, Any]:
    """`role("r", "publishClientSend a/# allow")`."""
    acls = []
    for number, rule in enumerate(rules):
        kind, topic, word = rule.split()
        acls.append(
            {"acltype": kind, "topic": topic, "allow": word == "allow", "priority": -number}
        )
    return {"command": "createRole", "rolename": name, "acls": acls}


async def test_clients_are_made_and_may_at_once_what_their_roles_say(tmp_path: Path) -> None:
    async with hub(tmp_path) as made:
        admin = await Admin.log_in(made)
        await admin.do(role("r", "publishClientSend a/# allow", "subscribePattern a/# allow"),
                       create("bob", roles=[{"rolename": "r"}]))  # fmt: skip
        bob = Mqtt(made, "b", "bob", "pw")
        assert await bob.open() == 0
        assert await bob.subscribe("a/#") == 1 and await bob.subscribe("b/#") == 0x87
        assert await bob.publish("a/b", b"1") == 0 and await bob.publish("b/b", b"2") == 0x87
        rule = {"rolename": "r", "acltype": "publishClientSend", "topic": "b/#", "allow": True}
        await admin.do({"command": "addRoleACL", **rule})
        assert await bob.publish("b/b", b"3") in (0, 0x10), "without connecting again"
        await admin.do({"command": "removeClientRole", "username": "bob", "rolename": "r"})
        assert await bob.publish("a/b", b"4") == 0x87 and await bob.publish("b/b", b"5") == 0x87
        bob.paho.loop_stop()
        admin.close()


@pytest.mark.parametrize(
    "command",
    [
        {"command": "setClientPassword", "password": "other"}, {"command": "disableClient"},
        {"command": "deleteClient"}, {"command": "setClientId", "clientid": "another"},
        {"command": "modifyClient", "password": "other"},
    ],
    ids=lambda one: str(one["command"]),
)  # fmt: skip
async def test_who_may_not_stay_goes_at_once(tmp_path: Path, command: dict[str, Any]) -> None:
    async with hub(tmp_path) as made:
        admin = await Admin.log_in(made)
        await admin.do(create("bob"), create("cid"))
        bob, cid = Mqtt(made, "b", "bob", "pw"), Mqtt(made, "c", "cid", "pw")
        assert await bob.open() == 0 and await cid.open() == 0
        bob.paho.reconnect_delay_set(60)
        await admin.do({**command, "username": "bob"})
        assert await bob.code("disconnect") == 0x87
        bob.paho.loop_stop()
        again = Mqtt(made, "b", "bob", "pw")
        assert await again.open() in (0x85, 0x86)
        again.paho.loop_stop()
        assert await cid.publish("x", b"") == 0x87, "it is still here, and may nothing"
        cid.paho.loop_stop()


async def answered(hub: Hub, user: bytes) -> bytes:
    """All that MQTT 5 says to who logs in with a wrong password."""
    host, _, port = hub.addresses[0].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    said = b"\0\4MQTT\5\xc2\0\0\0\0\1c\0%c%b\0\2pw" % (len(user), user)
    writer.write(b"\x10%c%b" % (len(said), said))
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    return answer


async def test_the_log_says_that_a_user_is_disabled_and_its_client_does_not_hear_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hubbub")
    async with hub(tmp_path) as made:
        admin = await Admin.log_in(made)
        await admin.do(create("bob"), {"command": "disableClient", "username": "bob"})
        why = [await answered(made, user) for user in (b"bob", b"eve")]
        assert why[0] == why[1] and why[0], "a stranger does not learn who is disabled"
        told = [one.getMessage() for one in caplog.records if one.name == "hubbub.audit"]
        why_not = [text.partition("not let in: ")[2].partition(" [")[0] for text in told[-2:]]
        assert why_not == [f"{BAD_CREDENTIALS} ({DISABLED})", BAD_CREDENTIALS]
        await admin.do({"command": "enableClient", "username": "bob"})
        again = Mqtt(made, "b", "bob", "pw")
        assert await again.open() == 0
        again.paho.loop_stop()
        admin.close()
        admin.close()


async def test_only_who_may_write_there_is_heard_and_answered(tmp_path: Path) -> None:
    async with hub(tmp_path) as made:
        admin = await Admin.log_in(made)
        reads = "publishClientReceive $CONTROL/# allow", "subscribePattern $CONTROL/# allow"
        await admin.do(role("reads", *reads), create("eve", roles=[{"rolename": "reads"}]))
        eve = Mqtt(made, "e", "eve", "pw")
        assert await eve.open() == 0 and await eve.subscribe("$CONTROL/#") == 1
        assert await eve.publish(TOPIC, b'{"commands":[{"command":"listClients"}]}') == 0x87
        await admin.do({"command": "listClients"})
        assert await eve.publish("$delayed/1/" + TOPIC, b"{}") == 0x87
        assert eve.heard.empty(), "neither commands nor answers of others"
        eve.paho.loop_stop()
        admin.close()


async def test_what_was_answered_survives_and_no_secret_is_anywhere_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with hub(tmp_path, journal=Journal(record="all")) as made:
        admin = await Admin.log_in(made)
        await admin.do(create("bob", "correct-horse"))
        for qos, retain in ((0, True), (1, True), (2, False)):
            payload = json.dumps({"commands": [create(f"c{qos}", "battery-staple")]})
            admin.mqtt.paho.publish(TOPIC, payload, qos, retain)
            async with asyncio.timeout(10):
                await admin.mqtt.heard.get()
        await admin.do(
            {"command": "setClientPassword", "username": "bob", "password": "new-secret"}
        )
        admin.close()
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) > 3
    for file in files:
        for secret in (b"correct-horse", b"battery-staple", b"new-secret", b"adminpw"):
            assert secret not in file.read_bytes(), file
    for word in ("correct-horse", "battery-staple", "new-secret", "adminpw"):
        assert word not in caplog.text
    assert "createClient username 'bob': done" in caplog.text
    async with hub(tmp_path) as made:
        bob = Mqtt(made, "b", "bob", "new-secret")
        assert await bob.open() == 0
        bob.paho.loop_stop()


async def test_a_file_that_cannot_be_written_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(dynamic: Dynamic) -> None:
        raise SettingError("cannot write it: no space left")

    async with hub(tmp_path) as made:
        admin = await Admin.log_in(made)
        monkeypatch.setattr(Dynamic, "save", full)
        (answer,) = await admin.ask(create("bob"))
        assert answer["error"] == "Error saving the file"
        (answer,) = await admin.ask({"command": "getClient", "username": "bob"})
        assert answer["error"] == "Client not found"
        admin.close()


def test_the_file_is_for_its_owner(tmp_path: Path) -> None:
    assert beginning(tmp_path / "made.json").stat().st_mode & 0o777 in (0o644, 0o600)
    (tmp_path / "made.json").chmod(0o600)
    Dynamic(tmp_path / "made.json").save()
    assert (tmp_path / "made.json").stat().st_mode & 0o777 == 0o600


# Rights


def rights(*commands: dict[str, Any], user: str = "bob", tmp_path: Path) -> Any:
    file = beginning(tmp_path / "rights.json")
    dynamic = Dynamic(file)
    payload = json.dumps({"commands": [create("bob"), *commands]}).encode()
    assert not [one for one in dynamic_commands.run(dynamic.book, payload).answer if "error" in one]
    return dynamic.rights(user, "c")


def give(what: str) -> dict[str, Any]:
    return {"command": "addClientRole", "username": "bob", "rolename": what}


def test_who_has_no_role_may_nothing_but_what_the_defaults_say(tmp_path: Path) -> None:
    found = rights(tmp_path=tmp_path)
    for verb in VERBS:
        assert found.may(verb, "$queue/q" if verb == "consume" else "a") is (verb == "receive")
    nobody = rights(user="nobody", tmp_path=tmp_path)
    assert not any(nobody.may(verb, "a") for verb in VERBS), "whom the file does not name"


def test_the_more_important_rule_decides(tmp_path: Path) -> None:
    found = rights(
        role("wide", "publishClientSend # allow"),
        role("narrow", "publishClientSend a/safe deny", "publishClientSend a/# allow"),
        {**give("wide"), "priority": 1}, {**give("narrow"), "priority": 5}, tmp_path=tmp_path,
    )  # fmt: skip
    assert (
        found.may("publish", "a/x")
        and found.may("publish", "b")
        and not found.may("publish", "a/safe")
    )
    assert found.decided_by("publish", "a/safe") == "role narrow (publishClientSend a/safe: deny)"
    assert found.decided_by("subscribe", "a") == "defaultACLAccess (subscribe)"


def test_what_mosquitto_has_no_word_for(tmp_path: Path) -> None:
    found = rights(
        role("r", "publishClientSend $queue/mine allow", "subscribePattern $queue/+ allow",
             "publishClientReceive $queue/theirs deny",
             "publishClientSend $CONTROL/hubbub/$queue/# allow", "subscribeLiteral b/+ allow"),
        give("r"), tmp_path=tmp_path,
    )  # fmt: skip
    may = {(verb, name) for verb in VERBS for name in ("$queue/mine", "$queue/theirs", "b/+", "b/c")
           if found.may(verb, name)}  # fmt: skip
    assert {("enqueue", "$queue/mine"), ("consume", "$queue/mine"), ("destroy", "$queue/mine"),
            ("destroy", "$queue/theirs"), ("subscribe", "b/+")} <= may  # fmt: skip
    assert not {("enqueue", "$queue/theirs"), ("consume", "$queue/theirs"), ("subscribe", "b/c"),
                ("manage", "b/c")} & may  # fmt: skip
    assert not found.may("trace", "$queue/#"), "one of them may not be received"
    assert not found.may("manage", "$SYS/#")


async def test_a_client_id_and_groups(tmp_path: Path) -> None:
    async with hub(tmp_path, allow_anonymous=True) as made:
        admin = await Admin.log_in(made)
        await admin.do(
            role("r", "publishClientSend a allow"),
            {"command": "createGroup", "groupname": "g", "roles": [{"rolename": "r"}]},
            create("bob", clientid="b1", groups=[{"groupname": "g"}]),
            {"command": "setAnonymousGroup", "groupname": "g"},
        )
        gate = made.node.listeners[0].gate

        async def asked(client: str, user: str, secret: bytes) -> tuple[Any, str]:
            answer: asyncio.Future[tuple[Any, str]] = asyncio.get_running_loop().create_future()
            shown = Credentials(client, user, secret, "127.0.0.1")
            gate.authenticate(shown, lambda rights, reason: answer.set_result((rights, reason)))
            return await answer

        assert await asked("b2", "bob", b"pw") == (None, BAD_CLIENT)
        assert await asked("b2", "bob", b"no") == (None, BAD_CREDENTIALS), "nothing for who guesses"
        for who in (("b1", "bob", b"pw"), ("x", "", b"")):
            found, reason = await asked(*who)
            assert reason == "" and found.may("publish", "a") and not found.may("publish", "b")
        (answer,) = await admin.ask({"command": "deleteGroup", "groupname": "g"})
        assert "anonymous" in answer["error"], "mosquitto 2.0 falls over this"
        admin.close()


# Bad input

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
fields = st.sampled_from(
    ("username", "password", "clientid", "groupname", "rolename", "acltype", "topic", "allow",
     "priority", "acls", "roles", "groups", "clients", "count", "offset", "verbose", "textname")
)  # fmt: skip
likely = st.sampled_from(("bob", "g", "r", "publishClientSend", "a/#", 7, True, "", "\n", "\udcff"))


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(dynamic_commands.COMMANDS)) | st.text(max_size=5),
            st.dictionaries(fields, likely | values, max_size=6),
        ),
        max_size=5,
    )
)
def test_any_command_is_answered_and_leaves_a_book_that_can_be_read_again(found: list[Any]) -> None:
    book = Book()
    start = [role("r"), {"command": "createGroup", "groupname": "g"}, create("bob", "x")]
    commands = [*start, *({**more, "command": name} for name, more in found)]
    done = dynamic_commands.run(book, json.dumps({"commands": commands}).encode())
    assert len(done.answer) == len(commands)
    again = read_book(said(book), "again")
    assert said(again) == said(book)


@pytest.mark.parametrize("text", ["", "[]", "7", "[" * 100_000, '{"clients":7}', '{"clients":[{}]}',
    '{"clients":[{"username":"a","roles":[{"rolename":"no"}]}]}', '{"anonymousGroup":"no"}',
    '{"roles":[{"rolename":"r","acls":[{"acltype":"fly","topic":"a"}]}]}'])  # fmt: skip
def test_a_file_that_is_none_says_so(tmp_path: Path, text: str) -> None:
    file = tmp_path / "d.json"
    file.write_text(text)
    with pytest.raises(SettingError, match="no dynamic-security.json"):
        Dynamic(file)


def test_messages_that_are_none() -> None:
    for payload in (b"", b"{", b"[]", b"[" * 100_000, b'{"commands":7}', b"\xff", b" " * (2 << 20)):
        (answer,) = dynamic_commands.run(Book(), payload).answer
        assert answer["command"] == "Unknown command" and answer["error"]


def test_settings_that_do_not_go_together(tmp_path: Path) -> None:
    file = beginning(tmp_path / "d.json")
    with pytest.raises(SettingError, match="acl_file and dynamic_security"):
        load(None, [f"dynamic_security={file}", "acl_file=x"])
    with pytest.raises(SettingError, match="mosquitto_ctrl dynsec init"):
        Dynamic(tmp_path / "nowhere")
