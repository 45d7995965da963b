"""Whom NATS does not let in, and what an account may not do: said once, with what to do, at a pace
that grows; and mended without another start.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlparse

import nkeys
import pytest
from msgspec.structs import replace
from nats.aio.client import Client
from nkeys import PREFIX_BYTE_ACCOUNT as ACCOUNT
from nkeys import PREFIX_BYTE_OPERATOR as OPERATOR
from nkeys import PREFIX_BYTE_USER as USER

from hubbub import connect
from hubbub.cli import doctor
from hubbub.cluster import jetstream, nats, refusals
from hubbub.cluster.connecting import RETRY_SECONDS, Entry, client_options, is_refusal
from hubbub.cluster.jetstream import JetStream, Listener
from hubbub.cluster.nats import Nats
from hubbub.cluster.refusals import MOST, PUBLISH, SUBSCRIBE, Denied, matches, refusal
from hubbub.config.cluster import Cluster
from hubbub.config.settings import Settings
from hubbub.core.limits import CLUSTER_REFUSED_SECONDS
from tests.certificates import Authority
from tests.cluster.quorum import Quorum, has_program
from tests.cluster.test_jetstream import Hubs
from tests.cluster.test_nats import PATIENCE, PROGRAM, Server
from tests.cluster.test_nats_engine import until
from tests.cluster.test_rubbish import refused as frames_refused
from tests.ports import free_port
from tests.process import StartHub

ROOT = Path(__file__).parents[2]
has_server = pytest.mark.skipif(PROGRAM is None, reason="no nats-server (apt install nats-server)")


# In words


@pytest.mark.parametrize(
    ("given", "who"),
    [
        ({"url": ("nats://hub:secret@a:4222",)}, "as user 'hub'"),
        ({"url": ("nats://secret@a:4222",)}, "with the token of cluster.url"),
        ({"url": ("nats://a:4222",), "credentials": "/x.creds"}, "the credentials of /x.creds"),
        ({"url": ("nats://a:4222",), "certificate": "/x.pem"}, "with the certificate /x.pem"),
        ({"url": ("nats://a:4222",)}, "without a user"),
    ],
)  # fmt: skip
def test_who_is_refused_is_told_where_as_who_and_what_to_do(
    given: dict[str, object], who: str
) -> None:
    settings = Cluster(name="a", **given)  # type: ignore[arg-type]
    where = urlparse(settings.url[0])
    text = str(refusal(settings, where, Exception("nats: 'Authorization Violation'")))
    assert text.startswith("NATS at nats://a:4222 refuses this node, ")
    assert who in text and ": Authorization Violation. What to do: " in text
    assert "secret" not in text


def test_a_file_that_cannot_be_read_is_no_refusal_of_the_server() -> None:
    error = FileNotFoundError(2, "No such file or directory", "/x.creds")
    settings = Cluster(url=("nats://a",), name="a", credentials="/x.creds")
    assert is_refusal(error) and not is_refusal(ConnectionRefusedError(111, "refused"))
    text = str(refusal(settings, None, error))
    assert text.startswith("cluster.credentials /x.creds: No such file") and "What to do" in text


def test_a_right_is_said_once_as_it_is_to_be_granted() -> None:
    time = [100.0]
    denied = Denied(Cluster(url=("nats://a",), name="B", group="G"), lambda: time[0])
    said = 'nats: permissions violation for publish to "g.to.other"'
    assert denied.hears("nats: timeout") is None and denied.trouble() == ""
    line = denied.hears(said)
    assert line is not None and 'must grant publish: "G.to.*"' in line and "g.to.other" in line
    for _ in range(100):
        time[0] += 1
        assert denied.hears(said) == "" and "G.to.*" in denied.trouble()
    assert denied.hears('nats: permissions violation for subscription to "g.to.b"')
    assert denied.unheard() == ["G.to.B"] and 'subscribe: "G.to.B"' in denied.trouble()
    time[0] += refusals.LASTS_SECONDS + 1
    assert denied.trouble() == "" and denied.unheard() == []
    assert denied.hears(said), "it is news again"


def test_what_is_to_be_granted_is_what_the_guide_says() -> None:
    guide = (ROOT / "docs/guide/cluster.md").read_text("utf-8")
    (said,) = re.findall(r"permissions \{\n(.*?)\n      \}", guide, re.DOTALL)
    publish, subscribe = (re.findall(r'"([^"]+)"', part) for part in said.split("subscribe:"))
    assert publish == [one.format(group="hubbub", name="*") for one in PUBLISH]
    assert subscribe == [one.format(group="hubbub", name="*") for one in SUBSCRIBE]


def test_subjects() -> None:
    assert matches("a.*", "a.b") and not matches("a.*", "a.b.c") and not matches("a.*", "a")
    assert matches("a.>", "a.b.c") and not matches("a.>", "a") and not matches("a.b", "a.c")


def test_servers_that_are_heard_of_later_are_shown_the_same_user() -> None:
    def options(*urls: str) -> dict[str, object]:
        return client_options(Cluster(url=urls, name="a"), "x")

    found = options("nats://u:p@a", "nats://u:p@b")
    assert (found["user"], found["password"]) == ("u", "p")
    assert options("nats://secret@a")["token"] == "secret"
    assert "user" not in options("nats://u:p@a", "nats://v:p@b") | options("nats://a", "b:4222")


class Refused:
    """A client that is not let in."""

    is_connected = is_closed = False
    _current_server = last_error = _reconnection_task = None


async def test_pauses_grow_to_a_bound_and_begin_anew_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from nats.errors import Error

    loop, slept, said = asyncio.get_running_loop(), list[float](), list[str]()
    now = [1000.0]

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    async def complain(error: Exception) -> None:
        said.append(str(error))

    monkeypatch.setattr("hubbub.cluster.connecting.asyncio.sleep", sleep)
    monkeypatch.setattr(loop, "time", lambda: now[0], raising=False)
    entry = Entry(Cluster(url=("nats://a",), name="a"), "x", complain)
    entry._client = Refused()  # type: ignore[assignment]
    for _ in range(10):
        await entry._failed(Error("nats: 'Authorization Violation'"))
    await entry._failed(ConnectionRefusedError(111, "refused"))
    assert slept[:4] == [RETRY_SECONDS * 2**n for n in range(4)]
    assert slept[-2:] == [CLUSTER_REFUSED_SECONDS] * 2 and len(slept) == 10
    assert len(set(said)) == 2, "the same words, and of who is not there others"
    now[0] += 3 * CLUSTER_REFUSED_SECONDS
    await entry._failed(Error("nats: 'Authorization Violation'"))
    assert slept[-1] == RETRY_SECONDS


class Stuck(Refused):
    """One whose task has died: it is not connected and tries nothing."""

    def __init__(self) -> None:
        self.closed = False

    async def close(self) -> None:
        self.closed = True


async def test_a_client_that_tries_nothing_any_more_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hubbub.cluster.connecting.STUCK_SECONDS", 0.3)
    monkeypatch.setattr("hubbub.cluster.connecting.CONNECT_SECONDS", 0.1)

    async def complain(error: Exception) -> None:
        pass

    entry, stuck = Entry(Cluster(url=("nats://a",), name="a"), "x", complain), Stuck()
    entry._client = stuck  # type: ignore[assignment]
    ended = asyncio.create_task(entry.ended())
    for _ in range(4):
        await asyncio.sleep(0.1)
        await entry._failed(ConnectionRefusedError(111, "refused"))
    assert not ended.done(), "it tries"
    async with asyncio.timeout(PATIENCE):
        await ended
    assert stuck.closed


class Ended(Refused):
    """Clients that connect at once, and end when they are told to, however late."""

    made: ClassVar[list[Ended]] = []

    def __init__(self) -> None:
        self.is_connected = self.is_closed = False
        self.ways: dict[str, Any] = {}
        self.made.append(self)

    async def connect(self, **options: Any) -> None:
        self.is_connected, self.ways = True, options

    async def close(self) -> None:
        self.is_connected, self.is_closed = False, True

    async def end(self) -> None:
        await self.ways["disconnected_cb"]()
        await self.ways["closed_cb"]()


async def test_of_a_client_that_was_given_up_nothing_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hubbub.cluster.connecting.CONNECT_SECONDS", 0.02)
    monkeypatch.setattr("nats.aio.client.Client", Ended)
    monkeypatch.setattr(Ended, "made", [])
    lost = list[str]()

    async def complain(error: Exception) -> None:
        lost.append(str(error))

    async def gone() -> None:
        lost.append("gone")

    entry = Entry(Cluster(url=("nats://a",), name="a"), "x", complain)

    async def attempt(client: Client) -> bool:
        await entry.connect(client, gone)
        return True

    async def nothing() -> None:
        pass

    staying = asyncio.create_task(entry.stay(attempt, nothing))
    try:
        await until(lambda: len(Ended.made) == 1 and bool(Ended.made[0].ways))
        Ended.made[0].is_connected, Ended.made[0].is_closed = False, True  # and it says nothing
        await until(lambda: len(Ended.made) == 2 and bool(Ended.made[1].ways))
        await Ended.made[0].end()
        await asyncio.sleep(0.1)
        assert Ended.made[1].is_connected and len(Ended.made) == 2 and not lost
        await Ended.made[1].end()
        await until(lambda: len(Ended.made) == 3 and Ended.made[2].is_connected)
        assert lost == ["gone"] and Ended.made[1].is_closed
    finally:
        staying.cancel()


# With a server


class Guarded(Server):
    """A server whose one user, and what that may, can be changed while it runs."""

    def __init__(self, folder: Path, password: str = "right", rights: str = "") -> None:
        self.file, self.log = folder / "server.conf", folder / "server.log"
        self.websocket = free_port()
        self._write(password, rights)
        super().__init__("-c", str(self.file), "-l", str(self.log))

    def _write(self, password: str, rights: str) -> None:
        extra = f", permissions: {{ {rights} }}" if rights else ""
        user = f'{{ user: plant, password: "{password}"{extra} }}'
        ears = f'websocket {{ listen: "127.0.0.1:{self.websocket}", no_tls: true }}'
        self.file.write_text(f"authorization {{ users: [ {user} ] }}\n{ears}\n")

    def change(self, password: str = "right", rights: str = "") -> None:
        """When this returns it holds."""
        before = self._text().count("Reloaded server configuration")
        self._write(password, rights)
        self.process.send_signal(signal.SIGHUP)
        ends = time.monotonic() + PATIENCE
        while self._text().count("Reloaded server configuration") == before:
            assert time.monotonic() < ends, self._text()
            time.sleep(0.02)

    def _text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def refused(self) -> int:
        return self._text().count("authentication error")

    def settings(self, name: str = "a", password: str = "right", scheme: str = "nats") -> Cluster:
        port = self.websocket if scheme == "ws" else self.port
        return Cluster(url=(f"{scheme}://plant:{password}@127.0.0.1:{port}",), name=name)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    server = Guarded(tmp_path)
    ends = time.monotonic() + PATIENCE
    while "Server is ready" not in server._text():
        assert time.monotonic() < ends
        time.sleep(0.02)
    yield server
    server.kill()


@asynccontextmanager
async def engine(settings: Cluster, heard: list[bytes] | None = None) -> AsyncIterator[Nats]:
    found = Nats(settings)
    await found.open(heard.append if heard is not None else lambda frame: None, lambda: None)
    try:
        yield found
    finally:
        await found.close()


def lines(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [one.getMessage() for one in caplog.records if part in one.getMessage()]


def test_troubles_that_were_said_are_so_many_whatever_a_server_says() -> None:
    engine = Nats(Cluster(url=("nats://a",), name="b", group="G"))
    for number in range(3 * MOST):
        engine._down(f"odd {number}")
    assert engine.trouble == f"odd {3 * MOST - 1}" and len(engine._said) <= MOST


@has_server
@pytest.mark.interop
async def test_a_wrong_password_is_said_once_and_tried_ever_more_rarely(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    began = time.monotonic()
    async with engine(guarded.settings(password="wrong")) as node:
        await until(lambda: guarded.refused() >= 4)
        assert time.monotonic() - began > 1.5, "after 0.25, 0.5 and 1 s"
        (line,) = lines(caplog, "refuses this node")
        assert f"NATS at nats://127.0.0.1:{guarded.port} refuses this node, as user 'plant'" in line
        assert "Authorization Violation" in line and "mend user and password in" in line
        assert "wrong" not in caplog.text
        assert node.trouble in line and not node.up
        await asyncio.to_thread(guarded.change, "wrong")
        await until(lambda: node.up)
        assert node.trouble == ""


@has_server
@pytest.mark.interop
@pytest.mark.slow
async def test_a_password_that_is_changed_while_the_server_runs(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    """The server ends the connection for good, as nats-py sees it. One comes by a WebSocket."""
    heard: list[bytes] = []
    other = guarded.settings("b", scheme="ws")
    async with engine(guarded.settings("a"), heard) as a, engine(other) as b:
        await until(lambda: a.up and b.up)
        await asyncio.to_thread(guarded.change, "other")
        await until(lambda: not a.up and not b.up)
        await until(lambda: "as user 'plant': Authorization Violation" in a.trouble)
        await until(lambda: guarded.refused() >= 4)
        assert len(lines(caplog, "refuses this node")) == 2, "one of each node"
        await asyncio.to_thread(guarded.change)
        await until(lambda: a.up and b.up)
        async with asyncio.timeout(PATIENCE):
            while not heard:
                b.send("a", [b"x"])
                await asyncio.sleep(0.05)


@has_server
@pytest.mark.interop
async def test_a_server_that_wants_a_certificate_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path / "tls")
    place = authority.sign("localhost", server=True)
    server = Server("--tlsverify", "--tlscert", str(place), "--tlskey", str(place),
                    "--tlscacert", str(authority.file))  # fmt: skip
    try:
        url = (f"tls://127.0.0.1:{server.port}",)
        async with engine(Cluster(url=url, name="a", ca=str(authority.file))) as node:
            await until(lambda: "certificate" in node.trouble)
            assert "refuses this node" in node.trouble and "cluster.certificate" in node.trouble
        async with engine(Cluster(url=url, name="a", certificate=str(authority.sign("n")))) as node:
            await until(lambda: "cluster.ca is to be" in node.trouble)
    finally:
        server.kill()


@has_server
@pytest.mark.interop
async def test_credentials_that_cannot_be_used_are_named(
    tmp_path: Path,
) -> None:
    key = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
    (tmp_path / "server.conf").write_text(f"authorization {{ users: [ {{ nkey: {key} }} ] }}\n")
    server = Server("-c", str(tmp_path / "server.conf"))
    for file, said in ((tmp_path / "none", "No such file"), (tmp_path / "bad", "cannot be used")):
        if file.name == "bad":
            file.write_text("-----BEGIN USER NKEY SEED-----\nSUnonsense\n------END\n")
        url = (f"nats://127.0.0.1:{server.port}",)
        async with engine(Cluster(url=url, name="a", credentials=str(file))) as node:
            await until(lambda: f"cluster.credentials {file}" in node.trouble)  # noqa: B023
            assert said in node.trouble
    server.kill()


class Authorities:
    """An operator, an account of its own, and users of that, as `nsc` makes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.operator, self.account = (self._pair(kind) for kind in (OPERATOR, ACCOUNT))
        boundless = dict.fromkeys(("subs", "data", "payload", "conn", "imports", "exports"), -1)
        account = self._signed(self.operator, self.account, {"type": "account",
                               "limits": boundless | {"leaf": -1, "wildcards": True}})  # fmt: skip
        operator = self._signed(self.operator, self.operator, {"type": "operator"})
        (folder / "operator.jwt").write_text(operator)
        self.file = folder / "operator.conf"
        self.file.write_text(
            f"operator: {folder}/operator.jwt\nresolver: MEMORY\n"
            f"resolver_preload: {{ {self._name(self.account)}: {account} }}\n"
        )

    @staticmethod
    def _pair(kind: int) -> nkeys.KeyPair:
        return nkeys.from_seed(bytearray(nkeys.encode_seed(os.urandom(32), kind)))

    @staticmethod
    def _name(pair: nkeys.KeyPair) -> str:
        return str(pair.public_key.decode())

    def _signed(self, by: nkeys.KeyPair, whose: nkeys.KeyPair, says: dict[str, object]) -> str:
        head = {"typ": "JWT", "alg": "ed25519-nkey"}
        claims = {
            "jti": "x", "iat": int(time.time()), "iss": self._name(by), "name": str(says["type"]),
            "sub": self._name(whose), "nats": says | {"version": 2},
        }  # fmt: skip
        text = b".".join(_bare(json.dumps(part).encode()) for part in (head, claims))
        return (text + b"." + _bare(by.sign(text))).decode()

    def user(self, name: str, known: bool = True) -> Path:
        """The file of one more user; that of somebody else's account if it is not `known`."""
        pair, by = self._pair(USER), self.account if known else self._pair(ACCOUNT)
        boundless = dict.fromkeys(("subs", "data", "payload"), -1)
        said = self._signed(by, pair, {"type": "user", **boundless})
        file = self.folder / name
        file.write_text(
            f"-----BEGIN NATS USER JWT-----\n{said}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{pair.seed.decode()}\n"
            "------END USER NKEY SEED------\n"
        )
        return file


def _bare(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


@has_server
@pytest.mark.interop
async def test_nodes_come_in_with_files_of_an_account_and_with_one_that_was_renewed(
    tmp_path: Path,
) -> None:
    authorities = Authorities(tmp_path)
    server = Server("-c", str(authorities.file))

    def settings(name: str, file: Path) -> Cluster:
        return Cluster(url=(server.url,), name=name, credentials=str(file))

    heard: list[bytes] = []
    mine, other = authorities.user("a.creds"), authorities.user("b.creds", known=False)
    try:
        async with engine(settings("a", mine), heard) as a, engine(settings("b", other)) as b:
            await until(lambda: a.up)
            await until(lambda: f"with the credentials of {other}: Authorization" in b.trouble)
            assert not a.trouble and not b.up
            authorities.user("b.creds")
            await until(lambda: b.up)
            async with asyncio.timeout(PATIENCE):
                while not heard:
                    b.send("a", [b"x"])
                    await asyncio.sleep(0.05)
            assert not b.trouble
            whole = (tmp_path / "b.creds").read_text()
            for half in (whole[:-70], whole[whole.index("-----BEGIN USER") :]):  # being written
                (tmp_path / "b.creds").write_text(half)
                server.kill()
                server.again()
                await until(lambda: a.up and "b.creds: it cannot be used" in b.trouble)
                (tmp_path / "b.creds").write_text(whole)
                await until(lambda: b.up)
    finally:
        server.kill()


@has_server
@pytest.mark.interop
@pytest.mark.slow
async def test_rights_that_are_missing_are_said_once_and_trouble_until_they_are_granted(
    guarded: Guarded, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "LASTS_SECONDS", 5.0)
    monkeypatch.setattr(nats, "DENIED_LOOKS", 1)
    less = 'publish: ["hubbub.to.*"], subscribe: ["hubbub.all", "_INBOX.>"]'
    await asyncio.to_thread(guarded.change, "right", less)
    heard: list[bytes] = []
    async with engine(guarded.settings("a"), heard) as a, engine(guarded.settings("b")) as b:
        await until(lambda: a.up and b.up)

        async def say(holds: object) -> None:
            assert callable(holds)
            async with asyncio.timeout(PATIENCE):
                while not holds():
                    b.send("", [b"all"])
                    b.send("a", [b"one"])
                    await asyncio.sleep(0.1)

        await say(lambda: "hubbub.to.a" in a.trouble and "hubbub.all" in b.trouble)
        ends = time.monotonic() + 3
        await say(lambda: time.monotonic() > ends)
        assert len(lines(caplog, 'must grant publish: "hubbub.all"')) == 1
        assert len(lines(caplog, 'must grant subscribe: "hubbub.to.a"')) == 1
        assert a.up and b.up and not heard
        await asyncio.to_thread(guarded.change)
        await say(lambda: b"one" in heard and b"all" in heard)
        await say(lambda: not a.trouble and not b.trouble)


@has_server
@pytest.mark.interop
@pytest.mark.parametrize("scheme", ["nats", "tls", "wss"])
async def test_a_stop_that_is_meant_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, scheme: str
) -> None:
    caplog.set_level(logging.INFO)
    authority = Authority(tmp_path / "tls")
    place = authority.sign("localhost", server=True)
    tls, port = f'tls {{ cert_file: "{place}", key_file: "{place}" }}', free_port()
    says = {"nats": "", "tls": tls, "wss": f'websocket {{ listen: "127.0.0.1:{port}", {tls} }}'}
    (tmp_path / "server.conf").write_text(says[scheme])
    server = Server("-c", str(tmp_path / "server.conf"))
    try:
        url = (f"{scheme}://127.0.0.1:{port if scheme == 'wss' else server.port}",)
        async with engine(Cluster(url=url, name="a", ca=str(authority.file))) as node:
            await until(lambda: node.up)
            caplog.clear()  # of the question before it came
        await asyncio.sleep(0.1)  # the server's side ends last
        assert [one.getMessage() for one in caplog.records] == []
    finally:
        server.kill()


async def looked(settings: Cluster, folder: Path) -> doctor.Finding:
    given = Settings(data=str(folder), cluster=settings)
    (found,) = await asyncio.to_thread(lambda: list(doctor.cluster(given)))
    return found


@has_server
@pytest.mark.interop
async def test_the_doctor_tries_the_login_and_what_a_node_does(
    guarded: Guarded, tmp_path: Path
) -> None:
    found = await looked(guarded.settings(), tmp_path)
    assert (found.level, found.advice) == ("well", "")
    assert "lets this node in: NATS at nats://127.0.0.1" in found.found
    found = await looked(replace(guarded.settings(), copies="1"), tmp_path)
    assert found.level == "bad" and "lets this node in, but no copies: " in found.found
    assert "JetStream (-js)" in found.advice
    found = await looked(guarded.settings(password="wrong"), tmp_path)
    assert found.level == "bad" and "as user 'plant': Authorization Violation" in found.found
    assert found.advice.startswith("mend user and password in cluster.url")
    await asyncio.to_thread(guarded.change, "right", 'subscribe: ["hubbub.all", "_INBOX.>"]')
    found = await looked(guarded.settings(), tmp_path)
    assert found.level == "bad" and 'must grant subscribe: "hubbub.to.a"' in found.found
    await asyncio.to_thread(guarded.change, "right", 'publish: ["hubbub.to.a"]')
    found = await looked(guarded.settings(), tmp_path)
    assert 'must grant publish: "hubbub.all", publish: "hubbub.to.*"' in found.found
    just = 'publish: ["hubbub.all", "hubbub.to.*"], subscribe: ["hubbub.all", "hubbub.to.a"]'
    await asyncio.to_thread(guarded.change, "right", just)
    assert (await looked(guarded.settings(), tmp_path)).level == "well"


# Copies


class Changing(Quorum):
    """One server with JetStream, whose one user can be changed while it runs."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, 1, self._says("right", PUBLISH))

    @staticmethod
    def _says(password: str, may: tuple[str, ...], jetstream: str = "enabled") -> str:
        subjects = ", ".join(f'"{one.format(group="hubbub")}"' for one in may)
        rights = f"permissions: {{ publish: [{subjects}] }}"
        user = f'{{ user: plant, password: "{password}", {rights} }}'
        name = "server_name: n0"  # else a server does not read its file again
        return f"{name}\naccounts {{ PLANT: {{ jetstream: {jetstream}, users: [ {user} ] }} }}\n"

    @property
    def urls(self) -> list[str]:
        return [f"nats://plant:right@127.0.0.1:{port}" for port in self.ports]

    def change(
        self, password: str = "right", may: tuple[str, ...] = PUBLISH, jetstream: str = "enabled"
    ) -> None:
        """When this returns it holds."""
        log, said = self.root / "nats-0.log", "Reloaded server configuration"
        before = log.read_text().count(said)
        (self.root / "nats-0.conf").write_text(self._says(password, may, jetstream))
        self.signal(0, signal.SIGHUP)
        ends = time.monotonic() + PATIENCE
        while log.read_text().count(said) == before:
            assert time.monotonic() < ends
            time.sleep(0.02)


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[Changing]:
    server = Changing(tmp_path)
    server.wait()
    yield server
    server.end()


@has_program
@pytest.mark.interop
@pytest.mark.slow
async def test_copies_go_on_when_what_the_server_took_away_is_there_again(
    start_hub: StartHub, tmp_path: Path, changing: Changing
) -> None:
    hubs = Hubs(start_hub, tmp_path, changing)
    settings = Cluster(url=tuple(changing.urls), name="a", copies="auto")
    changing.change(may=("nothing",))
    found = await looked(settings, tmp_path)
    assert all(f'publish: "{one.format(group="hubbub")}"' in found.found for one in PUBLISH)
    changing.change()
    hub = await asyncio.to_thread(lambda: hubs.ready(hubs.hub("a")))
    assert (await looked(settings, tmp_path)).level == "well"
    assert (await asyncio.to_thread(hubs.copies, hub))["trouble"] == ""
    assert await asyncio.to_thread(frames_refused, hub) == 0, "it is nobody's concern"

    def log() -> str:
        return (tmp_path / "a" / "hub.log").read_text()

    async with connect(hub.url("mqtt"), client_id="w") as writer:
        changing.change(may=tuple(one for one in PUBLISH if ".log." not in one))
        waits = asyncio.create_task(writer.publish("kept", b"1", qos=1, retain=True))
        grant = 'must grant publish: "hubbub.log.*"'
        await asyncio.to_thread(hubs.until, hub, lambda copies: grant in copies["trouble"])
        await asyncio.sleep(3)
        assert not waits.done() and log().count(grant) == 1
        changing.change()
        async with asyncio.timeout(PATIENCE):
            await waits
        changing.change("other")
        await asyncio.to_thread(hubs.until, hub, lambda copies: not copies["ready"])
        waits = asyncio.create_task(writer.publish("kept", b"2", qos=1, retain=True))
        changing.change()
        async with asyncio.timeout(2 * PATIENCE):
            await waits
        await asyncio.to_thread(hubs.ready, hub)
    assert log().count("W hubbub.cluster: NATS at nats") == 1
    before = log().count("NATS is lost")
    assert await asyncio.to_thread(hub.stop) == 0
    assert log().count("NATS is lost") == before


@has_program
@pytest.mark.interop
async def test_a_jetstream_that_is_turned_on_is_found(
    changing: Changing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetstream, "UNABLE_SECONDS", 0.2)
    await asyncio.to_thread(changing.change, jetstream="disabled")
    stream, ups = JetStream(Cluster(url=tuple(changing.urls), name="a", copies="1")), list[str]()

    def nothing(*given: object) -> None:
        pass

    def up() -> None:
        ups.append(stream.unable)

    stream.open(Listener(nothing, nothing, nothing, up, nothing, nothing))
    try:
        await until(lambda: "have no JetStream" in stream.unable)
        await asyncio.sleep(0.5)
        await asyncio.to_thread(changing.change)
        await until(lambda: stream.up)
        assert len(ups) == 2 and "have no JetStream" in ups[0] and not ups[1], "each said once"
    finally:
        await stream.close()
