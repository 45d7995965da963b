"""Permissions that are managed at one node of a cluster hold at all, also at one that was away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from hubbub import Hub, Settings, Switchboard
from hubbub.cluster import frames
from hubbub.config.settings import Journal
from tests.clients import Mqtt
from tests.cluster.test_two_hubs import nodes, until
from tests.runtime.test_control import Admin, beginning, create, role


class Nodes:
    """Hubs of one cluster, each with a file of its own; `seats` may be cut."""

    def __init__(self, path: Path, stack: AsyncExitStack) -> None:
        self.path = path
        self.stack = stack
        self.board = Switchboard()

    async def hub(self, name: str) -> Hub:
        file = self.path / f"{name}.json"
        if not file.exists():
            beginning(file)
        settings = Settings(
            listen=("127.0.0.1:0",), data=str(self.path / name), dynamic_security=str(file),
            journal=Journal(record="none"),
        )  # fmt: skip
        return await self.stack.enter_async_context(Hub(settings, cluster=self.board.join(name)))

    def file(self, name: str) -> str:
        return (self.path / f"{name}.json").read_text()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with AsyncExitStack() as stack:
        yield Nodes(tmp_path, stack)


def users(hub: Hub) -> set[str]:
    dynamic = hub.node.gates.dynamic
    assert dynamic is not None
    return set(dynamic.book.clients) - {"admin"}


async def both(cluster: Nodes) -> tuple[Hub, Hub]:
    a, b = await cluster.hub("a"), await cluster.hub("b")
    await until(lambda: nodes(a) and nodes(b))
    return a, b


def removes(user: str) -> dict[str, Any]:
    return {"command": "deleteClient", "username": user}


async def test_a_change_holds_at_every_node_and_lasts_there(cluster: Nodes) -> None:
    a, b = await both(cluster)
    admin = await Admin.log_in(a)
    await admin.do(
        role("r", "publishClientSend x/# allow"), create("ann", roles=[{"rolename": "r"}])
    )
    await until(lambda: users(b) == {"ann"})
    ann = Mqtt(b, "ann-1", "ann", "pw")
    assert await ann.open() == 0
    assert await ann.publish("x/1", b"") in (0, 0x10) and await ann.publish("y", b"") == 0x87
    await admin.do({"command": "removeClientRole", "username": "ann", "rolename": "r"})
    await until(lambda: '"rolename": "r"' not in cluster.file("b").partition('"roles"')[0])
    assert json.loads(cluster.file("b"))["clients"][1]["roles"] == []
    async with asyncio.timeout(10):
        while await ann.publish("x/1", b"") != 0x87:
            await asyncio.sleep(0.01)
    admin.close()
    await ann.close()


@pytest.mark.parametrize("command", ["deleteClient", "disableClient"])
async def test_who_is_removed_at_one_node_goes_at_all(cluster: Nodes, command: str) -> None:
    a, b = await both(cluster)
    admin = await Admin.log_in(a)
    await admin.do(create("ann"))
    await until(lambda: users(b) == {"ann"})
    ann = Mqtt(b, "ann-1", "ann", "pw")
    assert await ann.open() == 0
    await admin.do({"command": command, "username": "ann"})
    assert await ann.code("disconnect") == 0x87
    again = Mqtt(b, "ann-2", "ann", "pw")
    assert await again.open() == 0x86
    for one in (ann, again):
        await one.close()
    admin.close()


async def test_a_node_that_was_away_hears_it_when_it_is_back(cluster: Nodes) -> None:
    a, b = await both(cluster)
    admin = await Admin.log_in(a)
    await admin.do(create("ann"), create("bob"))
    await until(lambda: users(b) == {"ann", "bob"})
    await b.stop()
    await admin.do(removes("ann"), create("carl"))
    b = await cluster.hub("b")
    assert users(b) >= {"ann", "bob"}, "it reads its own file first"
    await until(lambda: users(b) == {"bob", "carl"})
    assert "ann" not in cluster.file("b").partition("hubbubEntries")[0]
    assert users(a) == {"bob", "carl"}
    admin.close()


async def test_changes_on_two_sides_become_one_and_nothing_that_was_taken_comes_back(
    cluster: Nodes,
) -> None:
    a, b = await both(cluster)
    admin = await Admin.log_in(a)
    await admin.do(role("r"), create("ann", roles=[{"rolename": "r"}]), create("bob"))
    await until(lambda: users(b) == {"ann", "bob"})
    seats = list(cluster.board.seats.values())
    for seat in seats:
        seat.cut = True
    other = await Admin.log_in(b)
    await admin.do({"command": "removeClientRole", "username": "ann", "rolename": "r"})
    await admin.do(removes("bob"))
    await other.do({"command": "modifyClient", "username": "ann", "textname": "Ann"})
    await other.do({"command": "addClientRole", "username": "bob", "rolename": "r"})
    for seat in seats:
        seat.cut = False
    await until(lambda: users(a) == users(b) == {"ann"})
    for hub in (a, b):
        assert hub.node.gates.dynamic is not None
        ann = hub.node.gates.dynamic.book.clients["ann"]
        await until(lambda one=ann: one.texts.get("textname") == "Ann")  # type: ignore[misc]
        assert ann.roles == {}
    admin.close()
    other.close()


async def test_a_file_that_somebody_edits_is_told_with_sighup(
    cluster: Nodes,
) -> None:
    a, b = await both(cluster)
    admin = await Admin.log_in(a)
    await admin.do(create("ann"))
    await until(lambda: users(b) == {"ann"})
    tree = json.loads(cluster.file("b"))
    tree["clients"] = [one for one in tree["clients"] if one["username"] != "ann"]
    (cluster.path / "b.json").write_text(json.dumps(tree))
    b.node.read_credentials()
    await until(lambda: users(a) == set())
    admin.close()


async def test_what_is_no_permission_changes_nothing(cluster: Nodes) -> None:
    a, b = await both(cluster)
    before, file = users(b), cluster.file("b")
    assert a.node.membership is not None
    for entry in (
        (("client",), 1 << 60, "a", "true"), (("group", "g", "what", "x"), 1 << 60, "a", "1"),
        (("role", "r"), 1 << 60, "a", "{"), ((), 1 << 60, "a", "true"),
    ):  # fmt: skip
        a.node.membership.permit(frames.Permits([entry]))
    a.node.schedule()
    admin = await Admin.log_in(a)
    await admin.do(create("ann"))
    await until(lambda: users(b) == {*before, "ann"})
    assert file != cluster.file("b")
    admin.close()
