"""Managed clients beside the real thing: mosquitto's plugin, its file and its `mosquitto_ctrl`.

The same commands go to both, and the answers are the same; each goes on with the file of the other.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiomqtt
import pytest

from hubbub.runtime.control import RESPONSE, TOPIC
from tests.client.mosquitto import MISSING, Mosquitto
from tests.process import RunningHub
from tests.security import Note

PLUGIN = "/usr/lib/x86_64-linux-gnu/mosquitto_dynamic_security.so"
CTRL = shutil.which("mosquitto_ctrl")
# In order, with what goes wrong too. Deleting the anonymous group is left out: mosquitto 2.0.11
# falls over it.
BATCHES: list[Any] = json.loads(Path(__file__).with_name("dynamic_security.json").read_text())

pytestmark = [
    pytest.mark.interop,
    MISSING,
    pytest.mark.skipif(
        CTRL is None or not Path(PLUGIN).exists(), reason="no dynamic security here"
    ),
]


def init(file: Path) -> Path:
    """As an administrator begins."""
    words = [str(CTRL), "dynsec", "init", str(file), "admin", "adminpw"]
    subprocess.run(words, check=True, capture_output=True, timeout=20)
    return file


def ctrl(port: int, *words: str) -> tuple[int, str]:
    """The exit code of `mosquitto_ctrl dynsec`, and what it says but for its warning."""
    login = ("-h", "127.0.0.1", "-p", str(port), "-u", "admin", "-P", "adminpw")
    done = subprocess.run(
        [str(CTRL), *login, "dynsec", *words], capture_output=True, text=True, timeout=20
    )
    said = [line for line in (done.stdout + done.stderr).splitlines() if line]
    return done.returncode, "\n".join(line for line in said if "encryption" not in line
                                      and "visible on the network" not in line)  # fmt: skip


class Both:
    """A hub and a mosquitto, each with a file of its own."""

    def __init__(self, folder: Path) -> None:
        self.ours, self.theirs = init(folder / "ours.json"), init(folder / "theirs.json")
        self.hub = RunningHub(folder / "data", "--set", f"dynamic_security={self.ours}")
        lines = (f"plugin {PLUGIN}", f"plugin_opt_config_file {self.theirs}")
        self.mosquitto = Mosquitto(folder, *lines)

    @property
    def ports(self) -> tuple[int, int]:
        return self.hub.port, self.mosquitto.port

    def stop(self) -> None:
        self.hub.stop()
        self.mosquitto.stop()


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    made = Both(tmp_path)
    yield made
    made.stop()


async def answers(port: int) -> list[Any]:
    found = []
    async with aiomqtt.Client("127.0.0.1", port, username="admin", password="adminpw") as client:
        await client.subscribe(RESPONSE, 1)
        for batch in BATCHES:
            payload = batch if isinstance(batch, str) else json.dumps({"commands": batch})
            await client.publish(TOPIC, payload, 1)
            async with asyncio.timeout(10):
                message = await anext(client.messages)
            assert isinstance(message.payload, bytes)
            found.append(json.loads(message.payload))
    return found


async def test_the_answers_are_the_same(both: Both, record_property: Note) -> None:
    record_property("tried", sum(len(one) if isinstance(one, list) else 1 for one in BATCHES))
    ours, theirs = [await answers(port) for port in both.ports]
    for batch, our, their in zip(BATCHES, ours, theirs, strict=True):
        assert our == their, batch


WORDS = """
createRole r1
addRoleACL r1 publishClientSend a/# allow 5
addRoleACL r1 subscribePattern a/# allow
addRoleACL r1 subscribePattern a/# allow
createGroup g1
createGroup g1
addGroupRole g1 r1 7
createClient bob -p bobpw -c bobid
createClient bob -p x
addGroupClient g1 bob 3
addClientRole bob r1 4
addClientRole bob nosuch
getClient bob
getClient nobody
getGroup g1
getRole r1
listClients
listGroups
listRoles
setDefaultACLAccess publishClientSend allow
setDefaultACLAccess publishClientReceive deny
getDefaultACLAccess
setAnonymousGroup g1
getAnonymousGroup
disableClient bob
getClient bob
enableClient bob
setClientPassword bob neu
setClientId bob another
getClient bob
removeRoleACL r1 publishClientSend a/#
removeClientRole bob r1
removeGroupClient g1 bob
removeGroupRole g1 r1
getGroup g1
deleteRole r1
deleteClient bob
deleteClient bob
"""


def test_mosquitto_ctrl_says_the_same_of_both(both: Both, record_property: Note) -> None:
    record_property("tried", len(WORDS.split("\n")) - 2)
    for line in WORDS.split("\n"):
        if line:
            ours, theirs = [ctrl(port, *line.split()) for port in both.ports]
            assert ours == theirs, line


async def logs_in(port: int, user: str, password: str, client: str) -> bool:
    try:
        async with aiomqtt.Client(
            "127.0.0.1", port, identifier=client, username=user, password=password
        ) as made:
            await made.publish("a/b", b"", 1)
            return True
    except aiomqtt.MqttError:
        return False


async def test_each_goes_on_with_the_file_of_the_other(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    both = Both(folder)
    try:
        for port in both.ports:
            ctrl(port, "createClient", "bob", "-p", "bobpw", "-c", "bobid")
            ctrl(port, "createGroup", "g1")
            ctrl(port, "addGroupClient", "g1", "bob", "3")
            ctrl(port, "createClient", "away", "-p", "x")
            ctrl(port, "disableClient", "away")
    finally:
        both.stop()
    lists = []
    swapped = tmp_path / "two"
    swapped.mkdir()
    hub = RunningHub(swapped / "data", "--set", f"dynamic_security={both.theirs}")
    lines = (f"plugin {PLUGIN}", f"plugin_opt_config_file {both.ours}")
    mosquitto = Mosquitto(swapped, *lines)
    try:
        for port in (hub.port, mosquitto.port):
            lists.append([ctrl(port, *words) for words in (
                ("listClients",), ("getClient", "bob"), ("getGroup", "g1"), ("getRole", "admin"),
                ("getClient", "away"),
            )])  # fmt: skip
            assert await logs_in(port, "bob", "bobpw", "bobid")
            for wrong in (("bob", "x", "bobid"), ("bob", "bobpw", "c"), ("away", "x", "c")):
                assert not await logs_in(port, *wrong)
        assert lists[0] == lists[1]
    finally:
        hub.stop()
        mosquitto.stop()


def test_a_kill_after_the_answer_loses_nothing(tmp_path: Path, record_property: Note) -> None:
    record_property("tried", 5)
    file = init(tmp_path / "d.json")
    hub = RunningHub(tmp_path / "data", "--set", f"dynamic_security={file}")
    for number in range(5):
        assert ctrl(hub.port, "createClient", f"c{number}", "-p", "x")[0] == 0
    hub.stop(9)
    hub = RunningHub(tmp_path / "data", "--set", f"dynamic_security={file}")
    said = ctrl(hub.port, "listClients")[1]
    hub.stop()
    assert said.split() == ["admin", *(f"c{number}" for number in range(5))]
