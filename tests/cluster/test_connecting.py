"""What is wrong with how a node is to connect is said at the start, by its name."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hubbub.cluster.connecting import check_urls, close, context_of, enter, is_refusal
from hubbub.config.cluster import Cluster
from hubbub.errors import SettingError


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nat://a:4222", "'nat://a:4222' cannot be used, its scheme is none of nats://, tls://"),
        ("http://a:4222", "its scheme"),
        ("NATS://a:4222", "its scheme"),
        ("://a", "its scheme"),
        ("nats://a:99999", "'nats://a:99999' cannot be used, its port is none of 1 to 65535"),
        ("nats://a:0", "its port"),
        ("a:port", "'a:port' cannot be used, its port"),
        ("nats://a:1,nats://b:1", "its port"),
        ("nats://u:secret/1@a:4222", "'nats://a:4222' cannot be used, its user or password"),
        ("nats://a,b", "its host is none"),
        ("nats://[::1", "its host is none"),
        ("nats://a b:4222", "its host is none"),
        ("nats://u:secret@:4222", "it names no host"),
        ("", "it names no host"),
    ],
)
def test_a_url_that_can_never_work_is_refused(url: str, said: str) -> None:
    with pytest.raises(SettingError) as refused:
        check_urls(Cluster(url=("nats://a", url), name="a"))
    text = str(refused.value)
    assert text.startswith("cluster.url: ") and said in text and "expected nats://HOST:PORT" in text
    assert "secret" not in text


def test_urls_of_nats_are_taken() -> None:
    urls = ("nats://a", "tls://u:p@a:4222", "a:4222", "nats://[::1]:4222", "nats://t0ken@a_b.example")
    check_urls(Cluster(url=urls, name="a", copies="auto"))
    check_urls(Cluster(url=("wss://a/nats", "ws://a:80"), name="a"))


def test_of_websockets_it_is_said_what_they_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match="cluster.url: .* all of one kind"):
        check_urls(Cluster(url=("nats://a", "wss://a"), name="a"))
    with pytest.raises(SettingError, match="cluster.copies = 'auto' needs nats:// or tls://"):
        check_urls(Cluster(url=("wss://a",), name="a", copies="auto"))
    monkeypatch.setattr("hubbub.cluster.connecting.importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingError, match="cluster.url: .* need aiohttp: run `pip install"):
        check_urls(Cluster(url=("wss://a",), name="a"))


def test_the_file_that_is_missing_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(SettingError, match="cluster.ca '.*missing.pem': .*No such file"):
        context_of(Cluster(url=("tls://a",), name="a", ca=missing))
    with pytest.raises(SettingError, match="cluster.certificate '.*missing.pem'"):
        context_of(Cluster(url=("tls://a",), name="a", certificate=missing))


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 503 Service Unavailable\r\n\r\n"])
async def test_who_ends_before_a_word_of_nats_refuses_nobody(said: bytes) -> None:
    """A server that was just killed, or what stands before one and finds it away: it is tried
    again soon.
    """
    client_of_nats = pytest.importorskip("nats.aio.client").Client

    async def ends(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.close()

    complaints: list[Exception] = []

    async def complain(error: Exception) -> None:
        complaints.append(error)

    server = await asyncio.start_server(ends, "127.0.0.1", 0)
    settings = Cluster(url=(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}",), name="a")
    client = client_of_nats()
    entering = asyncio.create_task(enter(client, settings, "a", error_cb=complain))
    async with server, asyncio.timeout(30):
        while len(complaints) < 2:
            assert not entering.done()
            await asyncio.sleep(0.01)
        entering.cancel()
        await asyncio.wait([entering])
        await close(client)
    assert not any(map(is_refusal, complaints)), complaints
