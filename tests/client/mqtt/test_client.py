"""What the client promises, with real brokers: mosquitto, and a hub of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from hubbub import Hub
from hubbub.client.mqtt import Message, Will, connect, tls_context
from hubbub.errors import CallFailed, CallTimeout, Refused, SettingError
from tests.certificates import Authority
from tests.client import mosquitto
from tests.ports import free_port
from tests.process import RunningHub

pytestmark = pytest.mark.interop
WAIT = 20


@pytest.fixture(scope="module")
def mosquitto_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    if mosquitto.BINARY is None:
        pytest.skip("no mosquitto here: apt install mosquitto")
    for broker in mosquitto.running(tmp_path_factory.mktemp("mosquitto")):
        yield {"mqtt": broker.url(), "ws": broker.url("ws")}


@pytest.fixture(scope="module")
def hub_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    hub = RunningHub(tmp_path_factory.mktemp("hub") / "data")
    yield {"mqtt": hub.url("mqtt"), "ws": hub.url("ws")}
    hub.stop()


@pytest.fixture(
    params=[
        ("hub", "mqtt", "3.1"),
        ("hub", "mqtt", "3.1.1"),
        ("hub", "mqtt", "5"),
        ("hub", "ws", "3.1.1"),
        ("hub", "ws", "5"),
        ("mosquitto", "mqtt", "3.1"),
        ("mosquitto", "mqtt", "3.1.1"),
        ("mosquitto", "mqtt", "5"),
        ("mosquitto", "ws", "5"),
    ],
    ids="-".join,
)
def place(request: pytest.FixtureRequest) -> tuple[str, str]:
    broker, scheme, version = request.param
    url = request.getfixturevalue(f"{broker}_url")[scheme]
    return url, version


@pytest.fixture(params=["hub", "mosquitto"])
def url(request: pytest.FixtureRequest) -> str:
    """A broker of MQTT 5."""
    found: str = request.getfixturevalue(f"{request.param}_url")["mqtt"]
    return found


async def take(client: object, count: int) -> list[Message]:
    found = []
    async with asyncio.timeout(WAIT):
        async for message in client.messages():  # type: ignore[attr-defined]
            found.append(message)
            if len(found) == count:
                return found
    return found


async def test_every_qos_arrives(place: tuple[str, str]) -> None:
    url, version = place
    async with connect(url, version=version) as client:
        assert client.version == version
        assert [await client.subscribe("every/#", qos) for qos in (0, 1, 2)] == [0, 1, 2]
        for qos in (0, 1, 2):
            await client.publish("every/a", b"%d" % qos, qos)
        assert sorted((one.payload, one.qos) for one in await take(client, 3)) == [
            (b"0", 0),
            (b"1", 1),
            (b"2", 2),
        ]


async def test_many_at_once_both_ways(place: tuple[str, str]) -> None:
    url, version = place
    heard: list[int] = []
    done = asyncio.Event()

    def hear(message: Message) -> None:
        heard.append(int(message.payload))
        if len(heard) == 300:
            done.set()

    async with connect(url, version=version) as client:
        await client.subscribe("many/+", 2, hear)
        await asyncio.gather(
            *(client.publish(f"many/{number % 7}", b"%d" % number, 2) for number in range(300))
        )
        async with asyncio.timeout(WAIT):
            await done.wait()
        assert heard == list(range(300))
        await client.unsubscribe("many/+")
        await client.publish("many/1", b"nobody")
        await client.ping()
        assert client.waiting == 0 and len(heard) == 300


async def test_retained_and_empty_payloads(place: tuple[str, str]) -> None:
    url, version = place
    topic = f"kept/{version}/{url[:2]}"
    async with connect(url, version=version) as client:
        await client.publish(topic, "last value", 1, True)
        await client.subscribe(topic, 1)
        assert (await take(client, 1))[0][1:4] == (b"last value", 1, True)
        await client.publish(topic, b"", 1, True)
        assert (await take(client, 1))[0][1:4] == (b"", 1, False)
    async with connect(url, version=version) as client:
        await client.subscribe(topic, 1)
        await client.ping()
        assert client.waiting == 0


async def test_a_lasting_session(place: tuple[str, str]) -> None:
    url, version = place
    name = f"lasting-{version}"
    async with connect(url, name, clean=False, version=version) as client:
        await client.subscribe("lasting/#", 1)
    async with connect(url, version=version) as other:
        await other.publish("lasting/1", b"kept for you", 1)
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    client = connect(url, name, clean=False, version=version)
    client.on("lasting/+", lambda message: heard.put_nowait(message.payload))
    async with client, asyncio.timeout(WAIT):
        assert client.session_present or version == "3.1", "which does not say so"
        assert await heard.get() == b"kept for you"
    async with connect(url, name, version=version) as client:
        assert not client.session_present


async def test_the_will_of_who_vanishes(place: tuple[str, str]) -> None:
    url, version = place
    will = Will(f"will/{version}", b"gone", 1)
    async with connect(url, version=version) as ann:
        await ann.subscribe(will.topic, 1)
        client = connect(url, version=version, will=will, reconnect=False)
        await client.open()
        assert client._connection is not None
        client._connection.abort(ConnectionError("pulled"))
        assert (await take(ann, 1))[0].payload == b"gone"
        await client.close()
        async with connect(url, version=version, will=will):
            pass
        await ann.ping()
        assert ann.waiting == 0, "who says goodbye has no will"


async def test_a_large_payload(place: tuple[str, str]) -> None:
    url, version = place
    # mosquitto 2.0.11 takes no more over a WebSocket.
    payload = bytes(range(256)) * (200 if url.startswith("ws") and version == "5" else 8_000)
    async with connect(url, version=version) as client:
        await client.subscribe("large", 1)
        await client.publish("large", payload, 1)
        assert (await take(client, 1))[0].payload == payload


async def test_properties_and_options_of_mqtt_5(url: str) -> None:
    async with connect(url, version=5) as client:
        await client.subscribe("p/#", 2)
        await client.publish(
            "p/1", "{}", 1, content_type="application/json", response_topic="re",
            correlation=b"\0\1", expiry=100, user=[("k", "v"), ("k", "w")], text=True,
        )  # fmt: skip
        (message,) = await take(client, 1)
        assert message[:8] == ("p/1", b"{}", 1, False, "application/json", "re", b"\0\1", 100)
        assert message.user == (("k", "v"), ("k", "w")) and message.text
        await client.subscribe("own/#", no_local=True)
        await client.publish("own/1", b"not for me")
        await client.ping()
        assert client.waiting == 0


async def test_each_callback_hears_a_message_once(url: str) -> None:
    heard: list[str] = []
    async with connect(url, version=5) as client:
        await client.subscribe("over/#", 1, lambda message: heard.append("#"))
        await client.subscribe("over/+", 1, lambda message: heard.append("+"))
        await client.subscribe("$share/group/over/1", 1, lambda message: heard.append("shared"))
        for _ in range(3):
            await client.publish("over/1", b"", 1)
        async with asyncio.timeout(WAIT):
            while len(heard) < 9:
                await asyncio.sleep(0.01)
        await client.ping()
    assert sorted(heard) == ["#"] * 3 + ["+"] * 3 + ["shared"] * 3


async def test_calls_and_services(url: str) -> None:
    async def upper(message: Message) -> bytes:
        if message.payload == b"fail":
            raise ValueError
        return message.payload.upper()

    async with connect(url, version=5) as service, connect(url) as client:
        serving = asyncio.create_task(service.serve("svc/upper", upper))
        await service.ping()
        replies = await asyncio.gather(
            *(client.call("svc/upper", f"call {number}") for number in range(50))
        )
        assert [one.payload for one in replies] == [b"CALL %d" % number for number in range(50)]
        with pytest.raises(CallFailed, match="^the handler failed: ValueError$"):
            await client.call("svc/upper", b"fail", timeout=10)
        with pytest.raises(CallTimeout, match="no reply"):
            await client.call("svc/nobody", b"", timeout=0.2)
        serving.cancel()


async def test_a_call_whose_answer_cannot_come_any_more_says_so() -> None:
    asked = asyncio.Event()
    async with Hub(listen="127.0.0.1:0") as hub:
        url = f"mqtt://{hub.addresses[0]}"
        async with connect(url, version=5, backoff=(0.01, 0.02)) as client:
            hub.subscribe("svc/slow", lambda *arguments: asked.set())
            call = asyncio.create_task(client.call("svc/slow", timeout=WAIT))
            await asked.wait()
            hub.shutdown()
            with pytest.raises(ConnectionError, match="ask again"):
                await call
            hub.subscribe("svc/fast", lambda data, ptid, *rest: hub.publish(b"yes", ptid))
            assert (await client.call("svc/fast", timeout=WAIT)).payload == b"yes"


async def test_a_filter_that_is_refused(hub_url: dict[str, str]) -> None:
    async with connect(hub_url["mqtt"], version=4) as client:
        with pytest.raises(Refused, match="queue"):
            await client.subscribe("$queue/+")
        await client.subscribe("a")
        for wrong in ("a/#/b", "a+", "a/b#", "#/", ""):
            with pytest.raises(SettingError):
                await client.subscribe(wrong)


# TLS


@mosquitto.MISSING
@pytest.mark.parametrize("scheme", ["mqtts", "wss"])
async def test_tls_with_certificates_on_both_sides(tmp_path: Path, scheme: str) -> None:
    authority = Authority(tmp_path / "certificates")
    server, own = authority.sign("server", server=True), authority.sign("ann")
    port = free_port()
    lines = (
        f"listener {port} 127.0.0.1",
        f"cafile {authority.file}",
        f"certfile {server}",
        f"keyfile {server}",
        "require_certificate true",
        *(("protocol websockets",) if scheme == "wss" else ()),
    )
    for _ in mosquitto.running(tmp_path, *lines):
        url = f"{scheme}://localhost:{port}"
        async with connect(url, tls=tls_context(authority.file, own)) as client:
            await client.subscribe("a", 1)
            await client.publish("a", b"secret", 1)
            assert (await take(client, 1))[0].payload == b"secret"
        with pytest.raises(OSError):  # nobody trusts it
            await connect(url).open()
        async with connect(url, tls=tls_context(certfile=own, insecure=True)):
            pass
        other = Authority(tmp_path / "others").sign("eve")
        with pytest.raises(OSError):  # it does not trust us
            await connect(url, tls=tls_context(authority.file, other), version=4).open()


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="nothing.pem"):
        tls_context(tmp_path / "nothing.pem")
