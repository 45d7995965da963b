"""`hubbub pub`, `sub`, `rr` and `probe` with mosquitto's flags, against mosquitto and a hub."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO, TextIOWrapper
from pathlib import Path

import cbor2
import msgpack
import pytest

from hubbub.cli import payload
from hubbub.client import connect
from hubbub.client.mqtt import Message
from hubbub.errors import SettingError
from tests.cli.test_pub_sub import hubbub, wait_for_subscriptions
from tests.client import mosquitto
from tests.command import Started, started
from tests.process import RunningHub


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[mosquitto.Mosquitto]:
    if mosquitto.BINARY is None:
        pytest.skip("no mosquitto here: apt install mosquitto")
    yield from mosquitto.running(tmp_path_factory.mktemp("mosquitto"))


def to(broker: mosquitto.Mosquitto | RunningHub) -> tuple[str, ...]:
    return ("-h", "127.0.0.1", "-p", str(broker.port))


@contextmanager
def beside(*words: str) -> Iterator[Started]:
    with started(*words) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.interop
@pytest.mark.parametrize("version", ["mqttv31", "mqttv5"])
def test_the_flags_of_mosquitto(broker: mosquitto.Mosquitto, version: str) -> None:
    place = (*to(broker), "-V", version)
    topic = f"flags/{version}"
    hubbub("pub", *place, "-t", topic, "-m", "kept", "-q", "2", "-r", "-i", "me", "-k", "30")
    assert hubbub("sub", *place, "-t", topic, "-C", "1", "-v") == f"{topic} kept\n"
    assert hubbub("sub", *place, "-t", topic, "-R", "-W", "0.3", code=27) == ""
    shown = hubbub("sub", *place, "-t", topic, "-C", "1", "-F", "%t|%p|%q|%r|%x|%l\\t", "-N")
    assert shown == f"{topic}|kept|0|1|6b657074|4\t"
    hubbub("pub", *place, "-t", topic, "-n", "-r", "-q", "1")
    assert hubbub("sub", *place, "-t", topic, "-W", "0.3", code=27) == ""
    url = f"mqtt://127.0.0.1:{broker.port}/{topic}"
    hubbub("pub", "-L", url, "-m", "by URL", "-r")
    assert hubbub("sub", "-L", url, "-C", "1", "--remove-retained") == f"{topic} by URL\n"
    assert hubbub("sub", "-L", url, "-W", "0.3", code=27) == ""


@pytest.mark.interop
def test_lines_from_stdin_arrive_in_order(hub: RunningHub) -> None:
    lines = [f"line {number}" for number in range(2_000)]
    for qos in ("0", "2"):
        with beside("sub", *to(hub), "-t", "l", "-C", "2000", "-q", qos, "-F", "%p") as sub:
            wait_for_subscriptions(hub, sub, 1)
            hubbub("pub", *to(hub), "-t", "l", "-l", "-q", qos, stdin="\n".join(lines).encode())
            output, _ = sub.communicate(timeout=30)
        assert output.splitlines() == lines


@pytest.mark.interop
def test_a_kept_session_collects(broker: mosquitto.Mosquitto) -> None:
    place = (*to(broker), "-i", "collector", "-c", "-q", "1")
    assert hubbub("sub", *place, "-t", "c/#", "-t", "d", "-E") == ""
    for number in "123":
        hubbub("pub", *to(broker), "-t", f"c/{number}", "-m", number, "-q", "1")
    assert hubbub("sub", *place, "-t", "c/#", "-T", "c/2", "-C", "2") == "c/1 1\nc/3 3\n"
    hubbub("sub", *place, "-U", "c/#")
    hubbub("pub", *to(broker), "-t", "c/4", "-m", "4", "-q", "1")
    assert hubbub("sub", *place, "-t", "d", "-W", "0.3", code=27) == ""


@pytest.mark.interop
def test_the_will_of_a_subscriber(hub: RunningHub) -> None:
    will = ("--will-topic", "will", "--will-payload", "gone", "--will-qos", "1", "--will-retain")
    with beside("sub", *to(hub), "-t", "x", *will) as sub:
        wait_for_subscriptions(hub, sub, 1)
        sub.kill()
    assert hubbub("sub", *to(hub), "-t", "will", "-C", "1", "-W", "20") == "will gone\n"


@pytest.mark.interop
def test_properties_and_repetition(broker: mosquitto.Mosquitto) -> None:
    said = (
        "--content-type", "application/json", "--response-topic", "re", "--correlation", "c",
        "--expiry", "100", "--user-property", "k=v", "--user-property", "k=w=x",
    )  # fmt: skip
    hubbub("pub", *to(broker), "-t", "p", "-m", '{"a": 1}', "-r", *said)
    seen = json.loads(hubbub("sub", *to(broker), "-t", "p", "-C", "1", "--json"))
    assert 70 < seen.pop("expiry") <= 100, "what is left of it"
    assert seen == {
        "topic": "p", "qos": 0, "retain": True, "content_type": "application/json",
        "response_topic": "re", "correlation": "63", "payload": '{"a": 1}',
        "user": [["k", "v"], ["k", "w=x"]],
    }  # fmt: skip
    assert hubbub("sub", *to(broker), "-t", "p", "-C", "1", "--decode") == 'p {"a": 1}\n'
    assert hubbub("sub", *to(broker), "-t", "p", "-C", "1", "--hex") == "p 7b2261223a20317d\n"
    hubbub("pub", *to(broker), "-t", "n", "-m", "there", "-r")
    with beside("sub", *to(broker), "-t", "n", "-C", "4", "-F", "%p", "-d", "-W", "20") as sub:
        assert sub.stdout is not None
        assert sub.stdout.readline() == "there\n", "retained: so it has subscribed"
        hubbub("pub", *to(broker), "-t", "n", "-m", "again", "--repeat", "3")
        assert sub.stdout.read() == "again\n" * 3  # communicate() forgets what was read ahead


@contextmanager
def service(url: str) -> Iterator[None]:
    """Something that answers on `svc`, in MQTT 5, until the end."""
    loop = asyncio.new_event_loop()
    up = threading.Event()

    async def serve() -> None:
        async with connect(url, version=5) as client:
            serving = asyncio.create_task(client.serve("svc", lambda one: one.payload.upper()))
            await client.ping()
            up.set()
            await serving

    def run() -> None:
        task = loop.create_task(serve())
        loop.call_soon(lambda: tasks.append(task))
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)

    tasks: list[asyncio.Task[None]] = []
    thread = threading.Thread(target=run)
    thread.start()
    assert up.wait(20)
    yield
    loop.call_soon_threadsafe(tasks[0].cancel)
    thread.join(20)
    loop.close()


@pytest.mark.interop
@pytest.mark.parametrize("kind", ["hub", "broker"])
def test_requests_and_responses(request: pytest.FixtureRequest, kind: str) -> None:
    place = to(request.getfixturevalue(kind))
    with service(f"mqtt://127.0.0.1:{place[-1]}"):
        assert hubbub("rr", *place, "svc", "-m", "hello", "-W", "20") == "HELLO\n"
        words = ("-t", "svc", "-e", "re/1", "-m", "hi", "-v", "-W", "20")
        assert hubbub("rr", *place, *words) == "re/1 HI\n"
        if mosquitto.BINARY is not None:
            done = subprocess.run(
                ["mosquitto_rr", *place, "-t", "svc", "-e", "re/2", "-m", "hey", "-W", "20"],
                capture_output=True,
            )
            assert done.stdout == b"HEY\n"
    assert "within 0.2 s" in hubbub("rr", *place, "-t", "none", "-m", "x", "-W", "0.2", code=27)
    assert "needs MQTT 5" in hubbub("rr", *place, "-t", "a", "-m", "x", "-V", "311", code=2)


@pytest.mark.interop
@pytest.mark.parametrize("kind", ["hub", "broker"])
def test_a_broker_is_probed(request: pytest.FixtureRequest, kind: str) -> None:
    port = request.getfixturevalue(kind).port
    found = json.loads(hubbub("probe", f"127.0.0.1:{port}", "--json"))
    assert found["versions"] == {"3.1": "yes", "3.1.1": "yes", "5": "yes"}
    assert found["maximum QoS"] == 2 and found["receive maximum"] > 0
    for name in ("retained messages", "wildcards", "shared subscriptions"):
        assert found[name] is True
    shown = hubbub("probe", *("-h", "127.0.0.1", "-p", str(port)))
    assert "MQTT 5" in shown and "retained messages" in shown and " ms" in shown


@pytest.mark.interop
@mosquitto.MISSING
def test_a_broker_that_wants_a_password_is_probed(tmp_path: Path) -> None:
    for broker in mosquitto.running(tmp_path, "allow_anonymous false"):
        shown = hubbub("probe", f"127.0.0.1:{broker.port}")
        assert shown.count("not authorised") == 3 and "retained" not in shown
    assert "hubbub: " in hubbub("probe", "127.0.0.1:1", code=1)
    assert "one broker" in hubbub("probe", "a:1", "-h", "b", code=2)
    assert "--port" in hubbub("probe", "1883", code=2)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("pub", "-m", "x"), "one topic"),
        (("pub", "a", "-t", "b", "-m", "x"), "one topic"),
        (("pub", "$queue/", "-m", "x"), "the name of a queue"),
        (("pub", "a", "-m", "x", "-n"), "not both"),
        (("pub", "a", "-l", "-m", "x"), "not both"),
        (("pub", "a", "-m", "x", "-L", "smq://h", "-V", "mqttv5"), "leave it out"),
        (("pub", "a", "-m", "x", "-L", "smq+ws://h", "--cafile", "x"), "leave it out"),
        (("pub", "a", "-m", "x", "-L", "smqs://h", "--cafile", "no/such.pem"), "no/such.pem"),
        (("pub", "a", "-m", "x", "--user-property", "k"), "NAME=VALUE"),
        (("pub", "a", "-m", "x", "-V", "mqttv6"), "mqttv5"),
        (("pub", "a", "-m", "x", "-c"), "client_id"),
        (("pub", "a", "-m", "x", "--will-payload", "x"), "--will-topic"),
        (("pub", "a", "-m", "x", "-h", "h", "-L", "mqtt://h"), "not both"),
        (("pub", "a", "-m", "x", "-L", "mqtt:/h"), "expected mqtt://HOST:PORT"),
        (("pub", "a", "-m", "x", "-L", "switch://h"), "hubbub switch"),
        (("pub", "a", "-m", "x", "--cafile", "no/such.pem"), "no/such.pem"),
        (("sub",), "--topic"),
        (("sub", "a", "--json", "--hex"), "one of"),
    ],
)
def test_what_cannot_be_meant(words: tuple[str, ...], says: str) -> None:
    assert says in " ".join(hubbub(*words, code=2).split())


@pytest.mark.parametrize("there", [True, False])
def test_who_is_asked_for_a_payload_is_told(
    there: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin = TextIOWrapper(BytesIO(b"typed"))
    monkeypatch.setattr(stdin, "isatty", lambda: there)
    monkeypatch.setattr("sys.stdin", stdin)
    assert payload.given(None, None) == b"typed"
    assert ("Ctrl-D at its end" in capsys.readouterr().err) is there
    payload.given(None, None, stdin=True)
    assert capsys.readouterr().err == "", "--stdin says that it is meant"


def test_formats() -> None:
    message = Message("t", b'{"a":1}', 1, True, "x/y", "re", b"\1", 5, (("k", "v"),), True, (1, 2))
    assert payload.formatted(r"%t %p %q %r %l %C %R %D %E %P %S %F %%\n", message) == (
        't {"a":1} 1 1 7 x/y re \x01 5 k:v 1,2 1 %\n'
    )
    assert json.loads(payload.formatted("%J", message))["payload"] == {"a": 1}
    with pytest.raises(SettingError, match="%Z"):
        payload.formatted("%Z", message)


@pytest.mark.parametrize(
    ("data", "content_type", "value"),
    [
        (b"21.5", "", 21.5),
        (b"not json", "", "not json"),
        (cbor2.dumps({"a": [1, 2]}), "", {"a": [1, 2]}),
        (msgpack.packb({"a": [1, 2]}), "", {"a": [1, 2]}),
        (cbor2.dumps(7), "application/cbor", 7),
        (msgpack.packb("x"), "application/msgpack", "x"),
        (b"\xff\xfe", "", "\\xff\\xfe"),
        (b"", "", ""),
        (b"{", "application/json", "{"),
    ],
)
def test_decoding(data: bytes, content_type: str, value: object) -> None:
    assert payload.decode(Message("a", data, content_type=content_type)) == value
