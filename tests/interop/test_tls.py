"""TLS on the same port as everything else: real clients, and what is refused.

The hubs are in this process, once on uvloop and once on asyncio's own loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from hubbub.config.settings import Journal, Listener, Settings, Tls
from hubbub.core.limits import REFUSALS_TOLD
from hubbub.runtime.node import Node
from hubbub.web.app import Application
from tests.certificates import Authority

pytestmark = pytest.mark.interop

CONNECT = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01x"
CONNACK = b"\x20\x02\x00\x00"
HALF_HELLO = bytes.fromhex("16 0301 0002 01 00")  # a whole record with its beginning
SMQ = b"GET / HTTP/1.1\r\nHost: localhost\r\nSimpleMQ: 1\r\nSendSmqHttpResponse: true\r\n\r\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> str:
    return str(authority.sign("localhost", server=True))


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hubbub")


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    """Runs a coroutine on one of the two loops."""
    factory = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}

    def go(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory[request.param]) as runner:
            runner.run(asyncio.wait_for(main, 30))

    return go


Run = Callable[[Coroutine[Any, Any, None]], None]


@contextlib.asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Node]:
    listener = Listener(address="127.0.0.1:0", **settings)
    memory = Journal(record="none")
    hub = Node(Settings(listen=(), listener=(listener,), journal=memory))
    hub.web = Application(hub)
    async with hub:
        yield hub
    assert hub.listeners[0].connections == 0, "every connection was counted out"


async def dial(
    hub: Node, context: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = hub.listeners[0].address.port
    return await asyncio.open_connection("localhost", port, ssl=context, limit=1 << 20)


async def admitted(hub: Node, context: ssl.SSLContext) -> tuple[asyncio.StreamWriter, str]:
    """A client that stays, and the user that the hub takes it for."""
    reader, writer = await dial(hub, context)
    writer.write(b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04stay")
    assert await reader.readexactly(4) == CONNACK
    port = writer.get_extra_info("sockname")[1]
    (sock,) = (sock for sock in hub.sockets if sock.port == port)
    assert sock.opening is not None and sock.opening.credentials is not None
    assert sock.opening.secure
    return writer, sock.opening.credentials.user


async def ask(hub: Node, context: ssl.SSLContext | None, data: bytes, size: int = -1) -> bytes:
    """Say it and hear `size` bytes of the answer, or all of it."""
    reader, writer = await dial(hub, context)
    writer.write(data)
    try:
        return await (reader.read(-1) if size < 0 else reader.readexactly(size))
    finally:
        writer.close()


def test_one_port_speaks_both(run: Run, authority: Authority, server: str) -> None:
    async def main() -> None:
        async with serving(tls=Tls(certificate=server)) as hub:
            trusting = authority.client()
            assert await ask(hub, None, CONNECT, 4) == CONNACK
            assert await ask(hub, trusting, CONNECT, 4) == CONNACK
            status = b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            for context in (None, trusting):
                answer = await ask(hub, context, status)
                assert answer.startswith(b"HTTP/1.1 200 OK") and b'"version"' in answer
                login = b"GET /login/me HTTP/1.1\r\nConnection: close\r\n\r\n"
                assert (await ask(hub, context, login)).startswith(b"HTTP/1.1 200 OK")

    run(main())


def test_mqtt_over_a_websocket_over_tls(run: Run, authority: Authority, server: str) -> None:
    async def main() -> None:
        async with serving(tls=Tls(certificate=server)) as hub:
            from websockets.asyncio.client import connect

            uri = f"wss://localhost:{hub.listeners[0].address.port}/anything"
            trusting = authority.client()
            async with connect(uri, ssl=trusting, subprotocols=["mqtt"]) as socket:  # type: ignore[list-item]
                await socket.send(CONNECT)
                assert await socket.recv() == CONNACK

    run(main())


def test_the_answer_of_smq_and_its_init_are_two_records(
    run: Run, authority: Authority, server: str
) -> None:
    """Java clients read the head, and then nothing more of the record it was in."""

    def records(hub: Node) -> list[bytes]:
        found: list[bytes] = []
        address = ("127.0.0.1", hub.listeners[0].address.port)
        with (
            socket.create_connection(address, 10) as plain,
            authority.client().wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            secure.sendall(SMQ)
            while len(found) < 2:
                found.append(secure.recv(16_384))  # one record at most
        return found

    async def main() -> None:
        async with serving(tls=Tls(certificate=server)) as hub:
            head, init = await asyncio.to_thread(records, hub)
            assert head.startswith(b"HTTP/1.1 200 OK\r\n") and head.endswith(b"\r\n\r\n")
            assert init[:3] == len(init).to_bytes(2, "big") + b"\x01"

    run(main())


def test_megabytes_both_ways(run: Run, authority: Authority, server: str) -> None:
    async def main() -> None:
        async with serving(tls=Tls(certificate=server)) as hub:
            # A remaining length of 3 MiB: 0, 0, 64 in digits of 128, and a fourth for 1.
            publish = b"\x30\x80\x80\xc0\x01" + b"\x00\x01t" + b"x" * ((3 << 20) - 3)
            subscribe = b"\x82\x06\x00\x01\x00\x01t\x00"
            packets = CONNECT + subscribe + publish
            answer = await ask(hub, authority.client(), packets, 4 + 5 + len(publish))
            assert answer.endswith(publish)

    run(main())


@pytest.mark.parametrize(
    ("first", "reply"),
    [(CONNECT, b""), (b"GET / HTTP/1.0\r\n\r\n", b"HTTP/1.1 400 "), (b"\0", b"")],
    ids=["mqtt", "http", "garbage"],
)
def test_a_listener_of_tls_only(
    run: Run,
    authority: Authority,
    server: str,
    first: bytes,
    reply: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with serving(tls=Tls(certificate=server, only=True)) as hub:
            assert await ask(hub, authority.client(), CONNECT, 4) == CONNACK
            answer = await ask(hub, None, first)
            assert answer.startswith(reply) and bool(answer) == bool(reply)
        assert "no TLS, and tls.only is set here" in caplog.text

    run(main())


def test_tls_where_there_is_none(
    run: Run, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving() as hub:
            with pytest.raises(ssl.SSLError, match="(?i)handshake.failure"):
                await dial(hub, authority.client())
        assert "this listener has no tls.certificate" in caplog.text

    run(main())


@pytest.mark.pure
def test_handshakes_that_come_to_nothing(
    run: Run,
    authority: Authority,
    server: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hubbub.runtime.tls.TLS_SECONDS", 0.5)

    async def main() -> None:
        async with serving(tls=Tls(certificate=server)) as hub:
            port = hub.listeners[0].address.port
            _, silent = await asyncio.open_connection("localhost", port)
            silent.write(HALF_HELLO)
            _, vanishing = await asyncio.open_connection("localhost", port)
            vanishing.write(HALF_HELLO)
            await vanishing.drain()
            vanishing.close()
            assert await ask(hub, None, b"\x16garbage" * 10) != CONNACK
            with pytest.raises(ssl.SSLCertVerificationError):
                await dial(hub, ssl.create_default_context())
            while hub.listeners[0].connections or hub.listeners[0].handshakes:
                await asyncio.sleep(0.02)
            silent.close()
            assert await ask(hub, authority.client(), CONNECT, 4) == CONNACK
        assert caplog.text.count("TLS handshake: ") >= 4

    run(main())


def test_a_refused_handshake_is_told_of_as_a_login_is(
    run: Run, authority: Authority, server: str, caplog: pytest.LogCaptureFixture
) -> None:
    """However many there are: so many lines a minute and no more."""

    async def main() -> None:
        async with serving(
            tls=Tls(certificate=server, client_ca=str(authority.file), require_certificate=True)
        ) as hub:
            audit = hub.broker.audit
            for _ in range(REFUSALS_TOLD // 2 + 4):
                with contextlib.suppress(OSError):
                    assert await ask(hub, authority.client(), CONNECT, 4) != CONNACK
            async with asyncio.timeout(10):
                while hub.listeners[0].connections or hub.listeners[0].handshakes:
                    await asyncio.sleep(0.02)
            told = [one.getMessage() for one in caplog.records if one.name == "hubbub.audit"]
            assert len(told) == REFUSALS_TOLD // 2
            assert "TLS handshake: peer did not return a certificate" in told[0]
            assert "127.0.0.1" in told[0] and len(audit.refusals.last("", "")) >= 60

    run(main())


def test_a_handshake_that_the_hubs_end_cuts_short(
    run: Run, authority: Authority, server: str
) -> None:
    async def main() -> None:
        async with serving(tls=Tls(certificate=server)) as hub:
            port = hub.listeners[0].address.port
            reader, writer = await asyncio.open_connection("localhost", port)
            writer.write(HALF_HELLO)
            while not hub.listeners[0].handshakes:
                await asyncio.sleep(0.01)
        assert await reader.read() == b""
        writer.close()

    run(main())


def test_handshakes_under_way_have_a_bound_and_the_oldest_goes(
    run: Run, authority: Authority, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubbub.runtime.listener.HANDSHAKES", 2)

    async def main() -> None:
        async with serving(tls=Tls(certificate=server)) as hub:
            port = hub.listeners[0].address.port
            half = [await asyncio.open_connection("localhost", port) for _ in range(3)]
            for count, (_, writer) in enumerate(half, 1):
                writer.write(HALF_HELLO)
                while len(hub.listeners[0].handshakes) < min(count, 2):
                    await asyncio.sleep(0.01)
            async with asyncio.timeout(4):
                assert await half[0][0].read() == b"", "the oldest"
            assert await ask(hub, authority.client(), CONNECT, 4) == CONNACK
            for _, writer in half:
                writer.close()
            while hub.listeners[0].connections:
                await asyncio.sleep(0.01)

    run(main())


def test_who_shakes_hands_slowly_does_not_go_for_a_flood_from_elsewhere(
    run: Run, authority: Authority, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A phone on a bad line was ended as the oldest, as often as it came."""
    monkeypatch.setattr("hubbub.runtime.listener.HANDSHAKES", 3)

    async def main() -> None:
        async with serving(tls=Tls(certificate=server)) as hub:
            listener = hub.listeners[0]
            port, writers = listener.address.port, []
            for count, source in enumerate(["127.0.0.1"] + ["127.0.0.2"] * 6):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, local_addr=(source, 0)
                )
                writer.write(HALF_HELLO)
                writers.append(writer)
                while listener.hub.broker.metrics.connections <= count or not (
                    len(listener.handshakes) == min(count + 1, 3)
                ):
                    await asyncio.sleep(0.01)
            async with asyncio.timeout(4):
                while list(listener.handshakes.values()) != ["127.0.0.1"] + ["127.0.0.2"] * 2:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.2)
            assert "127.0.0.1" in listener.handshakes.values()
            for writer in writers:
                writer.close()
            while listener.connections:
                await asyncio.sleep(0.01)

    run(main())


def test_certificates_of_clients(run: Run, authority: Authority, server: str) -> None:
    ann, bob = authority.sign("ann", "Hub & Co."), authority.sign("bob")
    nameless = authority.sign("", "Only an organization")
    tls = Tls(
        certificate=server, client_ca=str(authority.file), require_certificate=True,
        identity="common_name", crl=str(authority.revoke(bob)),
    )  # fmt: skip
    stranger = Authority(authority.folder / "elsewhere", "Elsewhere").sign("ann")

    async def main() -> None:
        async with serving(tls=tls) as hub:
            assert await ask(hub, authority.client(ann), CONNECT, 4) == CONNACK
            assert await ask(hub, authority.client(nameless), CONNECT) == b"\x20\x02\x00\x05"
            assert await ask(hub, None, CONNECT) == b"\x20\x02\x00\x05"
            for wrong in (bob, stranger, None):
                with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
                    await ask(hub, authority.client(wrong), CONNECT, 4)
            writer, user = await admitted(hub, authority.client(ann))
            assert user == "ann"
            writer.close()

    run(main())


def test_a_whole_subject_as_the_user(run: Run, authority: Authority, server: str) -> None:
    ann = authority.sign("ann, the first", "Hub & Co.")
    tls = Tls(certificate=server, client_ca=str(authority.file), identity="subject")

    async def main() -> None:
        async with serving(tls=tls) as hub:
            writer, user = await admitted(hub, authority.client(ann))
            assert user == r"CN=ann\, the first,O=Hub & Co."
            writer.close()

    run(main())


def test_a_renewed_certificate_is_taken_while_it_runs(
    run: Run, authority: Authority, server: str, tmp_path: Path
) -> None:
    file = tmp_path / "server.pem"
    file.write_bytes(Path(server).read_bytes())
    other = Authority(tmp_path / "other", "Another")

    async def main() -> None:
        async with serving(tls=Tls(certificate=str(file))) as hub:
            writer, _ = await admitted(hub, authority.client())
            file.write_bytes(other.sign("localhost", server=True).read_bytes())
            hub.read_credentials()
            assert await ask(hub, other.client(), CONNECT, 4) == CONNACK
            assert len(hub.broker.clients) == 2 and not writer.is_closing(), "who was there stays"
            writer.close()

    run(main())


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
@pytest.mark.skipif(
    shutil.which("mosquitto_pub") is None,
    reason="no mosquitto_pub here: apt install mosquitto-clients",
)
def test_mosquittos_clients(authority: Authority, server: str, version: str) -> None:
    tls = Tls(certificate=server, client_ca=str(authority.file), require_certificate=True)
    ann = str(authority.sign("ann"))

    async def command(name: str, port: int, *options: str) -> asyncio.subprocess.Process:
        identity = ("--cafile", str(authority.file), "--cert", ann, "--key", ann)
        return await asyncio.create_subprocess_exec(
            name, "-h", "localhost", "-p", str(port), "-V", version, *identity, *options,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip

    async def main() -> None:
        async with serving(tls=tls) as hub:
            port = hub.listeners[0].address.port
            sub = await command("mosquitto_sub", port, "-t", "a/#", "-q", "2", "-C", "1")
            while not any(session.subscriptions for session in hub.broker.clients.values()):
                await asyncio.sleep(0.02)
            pub = await command("mosquitto_pub", port, "-t", "a/b", "-q", "2", "-m", "secret")
            assert await pub.wait() == 0
            output, _ = await sub.communicate()
            assert output == b"secret\n"

    asyncio.run(asyncio.wait_for(main(), 30))


REFUSED = {  # OpenSSL's number and name of each alert, by 1.2 and 1.3 (RFC 8446, 6.2)
    "revoked": ("44", "44"),
    "expired": ("45", "45"),
    "unknown authority": ("48", "48"),
    "missing": ("40", "116"),
}


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_a_refused_client_is_told_why(
    run: Run, authority: Authority, server: str, version: str
) -> None:
    """By the alert that its own OpenSSL shows: also while it says its first words already."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("no openssl here: apt install openssl")
    revoked = authority.sign("bob")
    shown = {
        "revoked": revoked,
        "expired": authority.sign("eve", hours=-1),
        "unknown authority": Authority(authority.folder / "other", "Other").sign("ann"),
        "missing": None,
    }
    tls = Tls(
        certificate=server, client_ca=str(authority.file), require_certificate=True,
        crl=str(authority.revoke(revoked)),
    )  # fmt: skip

    async def main() -> None:
        async with serving(tls=tls) as hub:
            where = f"127.0.0.1:{hub.listeners[0].address.port}"
            for what, certificate in shown.items():
                mine = ("-cert", str(certificate)) if certificate else ()
                process = await asyncio.create_subprocess_exec(
                    program, "s_client", "-connect", where, f"-tls{version.replace('.', '_')}",
                    *mine, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.PIPE,
                )  # fmt: skip
                assert process.stdin is not None and process.stderr is not None
                process.stdin.write(CONNECT)  # and left open: it waits for what comes
                said = (await process.stderr.read()).decode()
                await process.wait()
                number = REFUSED[what][version == "1.3"]
                assert f"SSL alert number {number}" in said, (what, said)
            leaving = hub.leaving.transports
            async with asyncio.timeout(5):
                while leaving:
                    await asyncio.sleep(0.05)

    run(main())
