"""The options of the hub, each with clients of several protocols."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hubbub import Hub, connect
from hubbub.auth.passwords import add_user
from hubbub.config.settings import Journal, Settings, Smq
from hubbub.embed.peer import Info, Peer
from hubbub.errors import HubbubError, Refused, SettingError
from tests.clients import PATIENCE, Heard, Mqtt, http, message, mqtt, smq, user_property

LISTEN = "127.0.0.1:0"


class Door:
    """Lets in who says the right word; remembers who asked, and answers now or later."""

    def __init__(self, later: bool = False, no: Any = 6) -> None:
        self.asked: list[tuple[bytes, Info]] = []
        self.later = later
        self.no = no

    def __call__(self, credentials: bytes, info: Info) -> Any:
        self.asked.append((credentials, info))
        answer = 0 if credentials.endswith(b"sesame") else self.no
        return self._soon(answer) if self.later else answer

    async def _soon(self, answer: Any) -> Any:
        await asyncio.sleep(0.01)
        return answer


# authenticate


@pytest.mark.parametrize("later", [False, True], ids=["plain", "async"])
async def test_authenticate_is_asked_by_every_protocol(later: bool) -> None:
    door = Door(later)
    async with Hub(listen=LISTEN, authenticate=door) as hub:
        async with smq(hub, credentials="ann:sesame", info="a box"):
            pass
        async with mqtt(hub, user="ann", password="sesame"):
            pass
        async with http(hub) as service:
            answer = await service.get("/login/svc", auth=("ann", "sesame"))
            assert answer.status_code == 200
        async with http(hub) as service:
            wrong = await service.post("/publish/a", content=b"x", auth=("eve", "nosy"))
    assert wrong.status_code == 401
    assert [(credentials, info.protocol) for credentials, info in door.asked[:3]] == [
        (b"ann:sesame", "smq"),
        (b"ann:sesame", "mqtt"),
        (b"ann:sesame", "switch"),
    ]
    first = door.asked[0][1]
    assert (first.uid, first.user, first.info, first.arg) == ("device-1", "ann", "a box", None)
    assert first == "a box", "the text itself, as in the reference"
    assert first.seed and first.sock.peername()[0] == "127.0.0.1"
    assert first.header["simplemq"] == "1" and first.url == "/" and first.data == {}


async def test_binary_credentials_arrive_as_they_are() -> None:
    """A hash of the seed, in which any byte may stand anywhere."""
    shown = [b":" + bytes(range(19)), b"\xff:\xfe\x00" * 5, b"", b"plain"]
    seen = Heard(0)
    async with Hub(listen=LISTEN, authenticate=seen) as hub:
        for credentials in shown:
            async with smq(hub, credentials=credentials):
                pass
    assert [call[0] for call in seen.calls] == shown


@pytest.mark.parametrize("later", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize(
    ("answer", "code", "text"),
    [
        (1, 1, "this client id is not let in here"),
        (2, 2, "too many clients want to be let in at once"),
        (3, 3, "wrong user name or password"),
        ((3, "the door is locked"), 3, "the door is locked"),
        (4, 4, "a client certificate that says a name is required here"),
        ((5, "an old one"), 5, "an old one"),
        (6, 6, "access denied"),
        (None, 6, "access denied"),
        (False, 6, "access denied"),
        ("nonsense", 6, "access denied"),
        ((3,), 6, "access denied"),
    ],
)
async def test_refusals_have_a_code_and_a_text(
    later: bool, answer: Any, code: int, text: str
) -> None:
    async with Hub(listen=LISTEN, authenticate=Door(later, answer)) as hub:
        with pytest.raises(Refused) as refused:
            async with smq(hub):
                pass
        async with http(hub) as service:
            said = await service.get("/login/svc")
    assert f"({code})" in str(refused.value) and text in str(refused.value)
    assert (said.status_code, said.text) == (401, text)


@pytest.mark.parametrize(("answer", "code"), [(1, 0x85), (2, 0x89), (3, 0x86), (6, 0x87)])
async def test_refusals_as_mqtt_says_them(answer: int, code: int) -> None:
    async with Hub(listen=LISTEN, authenticate=Door(no=answer)) as hub:
        panel = Mqtt(hub, "panel-1")
        panel.paho.username_pw_set("ann", "a guess")  # without one it is 0x87, as mosquitto's
        assert await panel.open() == code
        await panel.close()


@pytest.mark.parametrize("later", [False, True], ids=["plain", "async"])
async def test_an_authenticate_that_raises_refuses(
    later: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def now(credentials: bytes, info: Info) -> int:
        raise RuntimeError("the program's own mistake")

    async def soon(credentials: bytes, info: Info) -> int:
        raise RuntimeError("the program's own mistake")

    async with Hub(listen=LISTEN, authenticate=soon if later else now) as hub:
        with pytest.raises(Refused, match="denied"):
            async with smq(hub):
                pass
    assert "the program's own mistake" in caplog.text


async def test_the_password_file_is_asked_first(tmp_path: Any) -> None:
    file = tmp_path / "passwords"
    add_user(file, "ann", b"secret")
    door = Door(no=0)
    settings = Settings(password_file=str(file))
    async with Hub(settings, listen=LISTEN, data=tmp_path / "data", authenticate=door) as hub:
        with pytest.raises(Refused, match="wrong user name"):
            async with smq(hub, credentials="ann:wrong"):
                pass
        assert door.asked == []
        async with smq(hub, credentials="ann:secret"):
            pass
        assert [credentials for credentials, _ in door.asked] == [b"ann:secret"]


async def test_a_public_address_needs_somebody_who_decides() -> None:
    with pytest.raises(SettingError, match="without credentials"):
        Hub(listen="0.0.0.0:0")
    Hub(listen="0.0.0.0:0", authenticate=Door())


# permittop, permitsubtop


async def test_permittop_decides_for_every_protocol() -> None:
    asked = Heard(lambda topic, issub, peer: not topic.startswith("bad"))
    async with Hub(listen=LISTEN, permittop=asked) as hub:
        heard = Heard()
        hub.subscribe("#", heard, filter=True)
        async with smq(hub) as device, mqtt(hub) as panel, http(hub) as service:
            await device.subscribe("good")
            with pytest.raises(Refused):
                await device.subscribe("bad")
            with pytest.raises(Refused):
                await device.create("bad")
            assert await panel.subscribe("good/#") == 1
            assert await panel.subscribe("bad/#") == 0x87
            assert await panel.publish("bad/x", b"") == 0x87
            assert (await service.post("/publish/bad", content=b"x")).status_code == 403
            await panel.publish("good", b"1")
            assert (await message(device)).payload == b"1"
        assert [call[0] for call in heard.calls] == [b"1"]
    said = [(topic, issub, peer.protocol) for topic, issub, peer in asked.calls]
    assert ("good", True, "smq") in said and ("bad", False, "smq") in said
    assert ("good/#", True, "mqtt") in said and ("bad/x", False, "mqtt") in said
    assert ("bad", False, "switch") in said


async def test_permittop_is_asked_once_a_connection_and_name() -> None:
    """The reference asks at every Create; here the answer holds while the client is connected."""
    asked = Heard(True)
    async with Hub(listen=LISTEN, permittop=asked) as hub:
        for _ in range(2):
            async with smq(hub) as device:
                await device.subscribe("a")
                await device.unsubscribe("a")
                await device.subscribe("a")
                for _ in range(3):
                    await device.publish("b", b"")
                    hub.subscribe("changes every route")
                    hub.unsubscribe("changes every route")
                await device.publish(device.number, b"addresses are free")
                await message(device)
        assert [(call[0], call[1]) for call in asked.calls] == [("a", True), ("b", False)] * 2
        assert all(isinstance(call[2], Peer) for call in asked.calls)
        hub.create("never asked about")
        assert len(asked.calls) == 4


async def test_one_token_may_log_in_twice_with_permittop() -> None:
    async with Hub(listen=LISTEN, permittop=Heard(True)) as hub:
        async with http(hub) as one, http(hub) as other:
            for service in (one, other):
                assert (await service.get("/login/svc")).status_code == 200


async def test_permitsubtop_is_asked_about_new_ones() -> None:
    asked = Heard(lambda subtopic, peer: subtopic != "bad")
    async with Hub(listen=LISTEN, permitsubtop=asked) as hub:
        hub.createsub("ours")
        async with smq(hub) as device:
            for _ in range(2):
                await device.createsub("good")
            await device.createsub("ours")
            with pytest.raises(Refused):
                await device.createsub("bad")
            assert [(call[0], call[1].tid) for call in asked.calls] == [
                ("good", device.number),
                ("bad", device.number),
            ]


async def test_permitsubtop_is_asked_about_names_that_come_over_mqtt() -> None:
    asked = Heard(lambda subtopic, peer: subtopic != "bad")
    async with Hub(listen=LISTEN, permitsubtop=asked) as hub:
        async with smq(hub) as device, mqtt(hub) as panel:
            await device.subscribe("room")
            for name in ("good", "bad", "good"):
                await panel.publish("room", b"", properties=user_property("smq-subtopic", name))
            good = hub.subtopic2tid("good")
            assert [(await message(device)).subtid for _ in range(3)] == [good, 0, good]
            assert hub.subtopic2tid("bad") is None
    assert [(call[0], call[1].protocol) for call in asked.calls] == [
        ("good", "mqtt"), ("bad", "mqtt"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["permittop", "permitsubtop", "onpublish"])
async def test_what_decides_at_once_cannot_be_async(name: str) -> None:
    async def later(*rest: Any) -> bool:
        return True

    with pytest.raises(TypeError, match="authenticate"):
        Hub(**{name: later})  # type: ignore[arg-type]


async def test_a_permittop_that_raises_says_no(caplog: pytest.LogCaptureFixture) -> None:
    async with Hub(listen=LISTEN, permittop=Heard(lambda *_: 1 / 0)) as hub:
        async with smq(hub) as device:
            with pytest.raises(Refused):
                await device.subscribe("a")
    assert "ZeroDivisionError" in caplog.text


# onpublish, ondrop


async def test_onpublish_sees_and_decides_about_every_message() -> None:
    asked = Heard(lambda data, *_: b"bad" not in data)
    dropped = Heard()
    async with Hub(listen=LISTEN, onpublish=asked, ondrop=dropped) as hub:
        heard = Heard()
        hub.subscribe("a", heard)
        async with smq(hub) as device, mqtt(hub) as panel, http(hub) as service:
            tid = hub.create("a")
            # In one write and equally long: one run, of which one message may not pass.
            await asyncio.gather(
                *(device.publish(tid, word, "s") for word in (b"0fine", b"1-bad", b"2fine"))
            )
            await heard.until(2)
            await panel.publish("a", b"bad too")
            await service.post("/publish/a", content=b"bad three")
            await panel.publish("a", b"last")
            await heard.until(3)
            number, stid = device.number, hub.subtopic2tid("s")
            hub.publish(b"bad, also ours", "a")
            hub.publish(b"ours", "a")
            await heard.until(4)
    assert [call[0] for call in heard.calls] == [b"0fine", b"2fine", b"last", b"ours"]
    passed = [call for call in asked.calls if call[0] != b""]
    assert [call[0] for call in passed] == [
        b"0fine", b"1-bad", b"2fine", b"bad too", b"bad three", b"last", b"bad, also ours", b"ours",
    ]  # fmt: skip
    assert passed[0][1:4] == (number, tid, stid) and passed[0][4].uid == "device-1"
    assert [call[4].protocol for call in passed[3:5]] == ["mqtt", "switch"]
    assert dropped.calls == []


async def test_ondrop_hears_what_nobody_got() -> None:
    dropped = Heard()
    async with Hub(listen=LISTEN, ondrop=dropped) as hub:
        async with smq(hub) as device, mqtt(hub) as panel:
            await device.publish("nobody", b"1", "s")
            await device.publish(123456, b"2")
            calls = list(await dropped.until(2))
            await panel.publish("nobody", b"3")
            await panel.publish("kept", b"4", retain=True)
            hub.publish(b"ours", "nobody")
            await device.subscribe("somebody")
            await panel.publish("somebody", b"5")
            assert (await message(device)).payload == b"5"
            calls += (await dropped.until(4))[2:]
            tid = hub.topic2tid("nobody")
            assert calls[0][:4] == (b"1", device.number, tid, hub.subtopic2tid("s"))
            assert calls[1][:3] == (b"2", device.number, 123456)
            assert calls[2][0] == b"3" and calls[2][2] == tid and calls[2][4].uid == "panel-1"
            assert calls[3][:3] == (b"ours", hub.gettid(), tid)
            assert len(dropped.calls) == 4


async def test_topics_without_a_number_get_one_as_long_as_there_may_be_more() -> None:
    """A flood of new names costs no more memory than `smq.max_topics` allows."""
    asked = Heard(True)
    heard, dropped = Heard(), Heard()
    settings = Settings(listen=(), smq=Smq(max_topics=2), journal=Journal(record="none"))
    async with Hub(settings, listen=LISTEN, onpublish=asked, ondrop=dropped) as hub:
        hub.subscribe("seen/#", heard, filter=True)
        async with mqtt(hub) as panel:
            for name in ("seen/1", "seen/2", "seen/3", "dropped/4"):
                await panel.publish(name, name.encode())
        numbers = hub.topic2tid("seen/1"), hub.topic2tid("seen/2")
        assert len(hub.topics()) == 2 and all(numbers)
    assert [call[2] for call in asked.calls] == [*numbers, 0, 0]
    assert [(call[0], call[2]) for call in heard.calls] == [
        (b"seen/1", numbers[0]), (b"seen/2", numbers[1]), (b"seen/3", 0),
    ]  # fmt: skip
    assert [(call[0], call[2]) for call in dropped.calls] == [(b"dropped/4", 0)]


# onconnect, onclose


@pytest.mark.parametrize("later", [False, True], ids=["plain", "async"])
async def test_onconnect_and_onclose_of_every_protocol(later: bool) -> None:
    came, went = Heard(), Heard()

    async def soon_came(*arguments: Any) -> None:
        came(*arguments)

    async with Hub(listen=LISTEN, onconnect=soon_came if later else came, onclose=went) as hub:
        async with smq(hub, info="a box") as device, mqtt(hub), http(hub) as service:
            number = device.number
            await service.get("/login/svc")
            await came.until(3)
        calls = await went.until(3)
        assert hub.peers()[1:] == []
    assert {peer.protocol: info.uid for _, info, peer in came.calls} == {
        "smq": "device-1", "mqtt": "panel-1", "switch": "svc",
    }  # fmt: skip
    tid, info, peer = next(call for call in came.calls if call[2].protocol == "smq")
    assert tid == peer.tid == number and info.info == "a box"
    tid, sock, gone, reason = next(call for call in calls if call[2].protocol == "smq")
    assert gone is peer and sock is peer.sock and (tid, reason) == (number, "")


async def test_onclose_says_why() -> None:
    went = Heard()
    async with Hub(listen=LISTEN, onclose=went) as hub:
        async with smq(hub), smq(hub):
            ((_, _, _, reason),) = await went.until()
            assert reason == "the same uid connected again"


async def test_a_message_of_onconnect_comes_after_the_welcome() -> None:
    def greet(tid: int, info: Info, peer: Peer) -> None:
        assert hub.publish(b"hello", tid)

    async with Hub(listen=LISTEN, onconnect=greet) as hub:
        async with smq(hub) as device:
            assert (await message(device)).payload == b"hello"


# The rest


async def test_onmsg_is_the_default_function() -> None:
    heard = Heard()
    async with Hub(listen=LISTEN, onmsg=heard) as hub:
        hub.subscribe("a")
        async with smq(hub) as device:
            await device.publish("a", b"1")
            assert (await heard.until())[0][0] == b"1"


async def test_readtmo_is_how_long_a_silent_client_may_stay() -> None:
    async with Hub(listen=LISTEN, readtmo=100) as hub:
        host, _, port = hub.addresses[0].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.0\r\nSimpleMQ: 1\r\n\r\n")
        async with asyncio.timeout(PATIENCE):
            said = await reader.read()
        writer.close()
    assert b"no Connect within 0.1 s" in said


async def test_keepidle_and_keepintv() -> None:
    import socket

    async with Hub(listen=LISTEN, keepidle=50, keepintv=5) as hub, smq(hub):
        (sock,) = hub.node.sockets
        assert sock.transport is not None
        raw = sock.transport.get_extra_info("socket")
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 50
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 5


@pytest.mark.parametrize(("idle", "every", "real"), [(40_000, 0.0, 32_767), (10, -1.0, 10)])
async def test_keepidle_of_any_size_and_beside_a_unix_socket(
    idle: float, every: float, real: int, tmp_path: Path
) -> None:
    """What the kernel does not take is no reason for a start that is half done."""
    import socket

    places = [LISTEN, f"unix:{tmp_path}/hub.sock"]
    async with Hub(listen=places, keepidle=idle, keepintv=every) as hub, smq(hub):
        (sock,) = hub.node.sockets
        assert sock.transport is not None
        raw = sock.transport.get_extra_info("socket")
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == real


async def test_rndtid_makes_the_hubs_number_random() -> None:
    heard = Heard()
    async with Hub(listen=LISTEN, rndtid=True) as hub:
        assert hub.gettid() != 1
        hub.subscribe("self", heard)
        async with smq(hub) as device:
            await device.publish(hub.gettid(), b"1")
            await heard.until()
            hub.publish(b"2", device.number)
            assert (await message(device)).sender == hub.gettid()


async def test_max_connections_bounds_each_address() -> None:
    async with Hub(listen=[LISTEN, LISTEN], max_connections=1) as hub:
        async with smq(hub):
            with pytest.raises((OSError, HubbubError)):
                async with smq(hub, "device-2"):
                    pass
            async with connect(f"mqtt://{hub.addresses[1]}") as client:
                await client.publish("a", b"", qos=1)


async def test_data_keeps_names_and_no_data_keeps_nothing(tmp_path: Any) -> None:
    async with Hub(data=tmp_path / "data") as hub:
        tid = hub.create("a")
    async with Hub(data=tmp_path / "data") as hub:
        assert hub.topic2tid("a") == tid
    assert (tmp_path / "data").exists()
    async with Hub() as hub:
        assert hub.topics() == []
