"""What the client says on the wire, packet by packet, to a broker that says what we want."""

from __future__ import annotations

import asyncio

import pytest

from hubbub.client.mqtt import MqttClient, Refusal, Will, connect
from hubbub.errors import CallTimeout, Refused, SettingError
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt.codec import specification
from tests.client.mqtt.transcript import CONNACK, CONNACK_5, Broker, Peer
from tests.protocols.mqtt.whole import parse_subscribe

SOON = (0.01, 0.05)


def limits(*properties: int) -> bytes:
    """A CONNACK of MQTT 5 with these bytes as properties."""
    return codec.connack(False, 0, bytes((len(properties), *properties)))


async def opened(broker: Broker, client: MqttClient, answer: bytes = CONNACK) -> Peer:
    opening = asyncio.create_task(client.open())
    peer = await broker.peer()
    await peer.accept(answer)
    await opening
    return peer


async def test_a_connect_says_everything() -> None:
    will = Will("gone", b"yes", 1, True, delay=5, content_type="text/plain", user=(("k", "v"),))
    async with Broker() as broker:
        url = f"mqtt://ann%40home:se%3Acret@127.0.0.1:{broker.port}"
        client = connect(url, "c1", False, 30, will, version=5, receive_maximum=7)
        opening = asyncio.create_task(client.open())
        peer = await broker.peer()
        said = codec.parse_connect(await peer.accept(CONNACK_5))
        await opening
        assert (said.client, said.clean, said.keep_alive) == (b"c1", False, 30)
        assert (said.user, said.password) == (b"ann@home", b"se:cret")
        assert said.will is not None and said.will[:4] == (b"gone", b"yes", 1, True)
        assert said.will.properties == codec.Properties(
            {specification.WILL_DELAY: 5},
            {specification.CONTENT_TYPE: b"text/plain"},
            [(b"k", b"v")],
        )
        assert said.properties is not None
        assert said.properties.numbers[specification.SESSION_EXPIRY] == specification.NEVER
        assert said.properties.numbers[specification.RECEIVE_MAXIMUM] == 7
        assert specification.TOPIC_ALIAS_MAXIMUM in said.properties.numbers
        await client.close()
        assert await peer.expect(codec.DISCONNECT) == (0xE0, b"")


@pytest.mark.parametrize(("version", "name"), [("3.1", b"MQIsdp"), ("3.1.1", b"MQTT")])
async def test_older_versions_are_called_by_their_names(version: str, name: bytes) -> None:
    async with Broker() as broker:
        client = connect(broker.url, version=version)
        opening = asyncio.create_task(client.open())
        peer = await broker.peer()
        said = codec.parse_connect(body := await peer.accept())
        await opening
        assert name in body and said.version == version == client.version
        await client.close()


@pytest.mark.parametrize("refusal", [b"\x20\x02\x00\x01", b"\x20\x03\x00\x84\x00"])
async def test_a_broker_that_knows_no_mqtt_5_is_spoken_to_in_3_1_1(refusal: bytes) -> None:
    async with Broker() as broker:
        client = connect(broker.url)
        opening = asyncio.create_task(client.open())
        assert codec.parse_connect(await (await broker.peer()).accept(refusal)).version == "5.0"
        assert codec.parse_connect(await (await broker.peer()).accept()).version == "3.1.1"
        await opening
        assert client.version == "3.1.1"
        await client.close()


async def test_a_refusal_says_why() -> None:
    async with Broker() as broker:
        client = connect(broker.url, version=4)
        opening = asyncio.create_task(client.open())
        await (await broker.peer()).accept(b"\x20\x02\x00\x05")
        with pytest.raises(Refused, match="not authorised"):
            await opening
        client = connect(broker.url, version=5)
        opening = asyncio.create_task(client.open())
        reason = codec.Properties(texts={specification.REASON_STRING: b"full house"})
        await (await broker.peer()).accept(codec.connack(False, 0x97, reason.encode()))
        with pytest.raises(Refusal, match="full house") as caught:
            await opening
        assert caught.value.code == 0x97


async def test_nobody_there_and_nobody_who_answers() -> None:
    async with Broker() as broker:
        pass
    with pytest.raises(OSError):
        await connect(broker.url).open()
    async with Broker() as broker:
        opening = asyncio.create_task(connect(broker.url).open())
        (await broker.peer()).hang_up()
        with pytest.raises(ConnectionError):
            await opening


async def test_another_server_is_followed() -> None:
    async with Broker() as first, Broker() as second:
        client = connect(first.url, version=5)
        opening = asyncio.create_task(client.open())
        place = codec.Properties(
            texts={specification.SERVER_REFERENCE: f"127.0.0.1:{second.port}".encode()}
        )
        await (await first.peer()).accept(codec.connack(False, 0x9D, place.encode()))
        await (await second.peer()).accept(CONNACK_5)
        await opening
        await client.close()


async def test_topics_become_aliases_as_far_as_the_broker_allows() -> None:
    async with Broker() as broker:
        client = connect(broker.url, version=5)
        peer = await opened(broker, client, limits(specification.TOPIC_ALIAS_MAXIMUM, 0, 2))
        for topic in ("a", "b", "a", "c", "b"):
            await client.publish(topic * 32, b"x")
        await client.publish("a", b"too short to be worth it")
        said = []
        for _ in range(5):
            packet = codec.parse_publish(*await peer.expect(codec.PUBLISH), v5=True)
            assert packet.properties is not None
            said.append((packet.topic[:1], packet.properties.numbers[specification.TOPIC_ALIAS]))
        # "b" was the least recently used when "c" came, and is new again after it.
        assert said == [(b"a", 1), (b"b", 2), (b"", 1), (b"c", 2), (b"b", 1)]
        short = codec.parse_publish(*await peer.expect(codec.PUBLISH), v5=True)
        assert short.topic == b"a" and short.properties == codec.Properties()
        await client.close()


async def test_aliases_of_the_broker_are_understood() -> None:
    async with Broker() as broker:
        client = connect(broker.url, version=5)
        peer = await opened(broker, client, CONNACK_5)
        alias = codec.Properties({specification.TOPIC_ALIAS: 3}).encode()
        peer.say(codec.publish(b"a/b", b"1", 0, properties=alias))
        peer.say(codec.publish(b"", b"2", 0, properties=alias))
        messages = client.messages()
        assert [(await anext(messages))[:2] for _ in "12"] == [("a/b", b"1"), ("a/b", b"2")]
        other = codec.Properties({specification.TOPIC_ALIAS: 4}).encode()
        peer.say(codec.publish(b"", b"3", 0, properties=other))
        assert (await peer.expect(codec.DISCONNECT))[1][:1] == b"\x94"
        await client.close()


async def test_no_more_is_under_way_than_the_broker_takes() -> None:
    async with Broker() as broker:
        client = connect(broker.url, version=5)
        peer = await opened(broker, client, limits(specification.RECEIVE_MAXIMUM, 0, 2))
        publishing = [asyncio.create_task(client.publish("a", b"%d" % n, 1)) for n in range(5)]
        payloads = []
        for n in range(5):
            packet = codec.parse_publish(*await peer.expect(codec.PUBLISH), v5=True)
            payloads.append(packet.payload)
            if n:  # one stays under way, so that two are never exceeded
                peer.say(codec.acknowledgement(codec.PUBACK, packet.packet_id))
        assert payloads == [b"%d" % n for n in range(5)]
        await asyncio.gather(*publishing[1:])
        assert client.unfinished == 1
        peer.say(codec.acknowledgement(codec.PUBACK, 1))
        await client.flush()
        await publishing[0]
        await client.close()


async def test_what_the_broker_will_not_take_is_not_sent() -> None:
    async with Broker() as broker:
        client = connect(broker.url, version=5)
        allowed = limits(
            specification.MAXIMUM_QOS, 1, specification.RETAIN_AVAILABLE, 0,
            specification.MAXIMUM_PACKET, 0, 0, 0, 30,
        )  # fmt: skip
        peer = await opened(broker, client, allowed)
        for wrong in ({"qos": 2}, {"retain": True}, {"payload": b"x" * 30}, {"qos": 3}):
            with pytest.raises((Refused, SettingError)):
                await client.publish(**{"topic": "a", **wrong})  # type: ignore[arg-type]
        with pytest.raises(SettingError, match="wildcards"):
            await client.publish("a/#")
        await client.publish("a", b"fine")
        assert codec.parse_publish(*await peer.packet(), v5=True).payload == b"fine"
        await client.close()


async def test_what_3_1_1_cannot_say_is_an_error() -> None:
    async with Broker() as broker:
        client = connect(broker.url, version=4)
        await opened(broker, client)
        for qos in (0, 1):
            with pytest.raises(SettingError, match="MQTT 5"):
                await client.publish("a", b"", qos, content_type="text/plain")
        with pytest.raises(SettingError, match="MQTT 5"):
            await client.subscribe("a", no_local=True)
        with pytest.raises(SettingError, match="MQTT 5"):
            await client.call("a")
        await client.close()


async def test_a_refused_message_raises_where_it_was_published() -> None:
    async with Broker() as broker:
        client = connect(broker.url, version=5)
        peer = await opened(broker, client, CONNACK_5)
        for qos, kind in ((1, codec.PUBACK), (2, codec.PUBREC)):
            publishing = asyncio.create_task(client.publish("a", b"", qos))
            packet = codec.parse_publish(*await peer.expect(codec.PUBLISH), v5=True)
            peer.say(codec.acknowledgement(kind, packet.packet_id, 0x97))
            with pytest.raises(Refusal, match="quota"):
                await publishing
        assert client.unfinished == 0
        await client.close()


async def test_acknowledgements_leave_when_messages_are_taken_and_in_order() -> None:
    async with Broker() as broker:
        client = connect(broker.url, version=4)
        peer = await opened(broker, client)
        client.on("fast", lambda message: None)
        peer.say(codec.publish(b"slow", b"", 1, packet_id=1))
        peer.say(codec.publish(b"fast", b"", 2, packet_id=2))
        await client.publish("still", b"nothing acknowledged")
        await peer.expect(codec.PUBLISH)
        assert (await anext(client.messages())).topic == "slow"
        assert await peer.expect(codec.PUBACK) == (0x40, b"\0\1")
        assert await peer.expect(codec.PUBREC) == (0x50, b"\0\2")
        peer.say(codec.publish(b"fast", b"", 2, packet_id=2, dup=True))
        assert await peer.expect(codec.PUBREC) == (0x50, b"\0\2")
        peer.say(codec.acknowledgement(codec.PUBREL, 2))
        assert await peer.expect(codec.PUBCOMP) == (0x70, b"\0\2")
        await client.close()


async def test_a_call_finds_its_reply_and_gives_up() -> None:
    async with Broker() as broker:
        client = connect(broker.url, "c", version=5)
        peer = await opened(broker, client, CONNACK_5)
        calling = asyncio.create_task(client.call("svc", b"?", user={"k": "v"}))
        _, body = await peer.expect(codec.SUBSCRIBE)
        asked = parse_subscribe(body, v5=True)
        assert asked.wanted == [(b"reply/c", 0)]
        peer.say(codec.suback(asked.packet_id, [0], b"\0"))
        request = codec.parse_publish(*await peer.expect(codec.PUBLISH), v5=True)
        assert request.properties is not None and request.properties.user == [(b"k", b"v")]
        texts = request.properties.texts
        peer.say(codec.acknowledgement(codec.PUBACK, request.packet_id))
        for correlation in (b"other", texts[specification.CORRELATION]):
            properties = codec.Properties(texts={specification.CORRELATION: correlation})
            peer.say(
                codec.publish(
                    texts[specification.RESPONSE_TOPIC],
                    correlation,
                    0,
                    properties=properties.encode(),
                )
            )
        assert (await calling).payload == texts[specification.CORRELATION]
        with pytest.raises(CallTimeout, match="svc"):
            await client.call("svc", timeout=0.05, qos=0)
        await client.close()


async def test_who_is_taken_over_does_not_come_back() -> None:
    async with Broker() as broker:
        client = connect(broker.url, version=5, backoff=SOON)
        peer = await opened(broker, client, CONNACK_5)
        peer.say(codec.disconnect(0x8E))
        with pytest.raises(Refused, match="taken over"):
            await anext(client.messages())
        with pytest.raises(Refused, match="taken over"):
            await client.publish("a", b"", 1)
        await client.close()


async def test_without_reconnection_the_end_is_the_end() -> None:
    async with Broker() as broker:
        client = connect(broker.url, reconnect=False)
        peer = await opened(broker, client, CONNACK_5)
        publishing = asyncio.create_task(client.publish("a", b"", 1))
        await peer.expect(codec.PUBLISH)
        peer.hang_up()
        for waiting in (publishing, client.subscribe("a"), client.publish("a"), client.ping()):
            with pytest.raises(ConnectionError):
                await waiting
        with pytest.raises(ConnectionError):
            await anext(client.messages())
        await client.close()


async def test_close_ends_what_waits() -> None:
    async with Broker() as broker:
        client = connect(broker.url)
        peer = await opened(broker, client, CONNACK_5)
        waiting = [
            asyncio.create_task(client.publish("a", b"", 2)),
            asyncio.create_task(client.flush()),
            asyncio.create_task(client.ping()),
        ]
        subscribing = asyncio.create_task(client.subscribe("a"))
        await peer.expect(codec.PUBLISH)
        await client.close()
        for one in (*waiting, subscribing):
            with pytest.raises(ConnectionError):
                await one
        assert [message async for message in client.messages()] == []
        await client.close()


@pytest.mark.parametrize(
    ("version", "says"),
    [("3.1", r"as MQTT 3\.1 has none"), ("3.1.1", "a full queue"), ("5", "was lost")],
)
async def test_who_cannot_be_told_why_is_told_what_may_be(version: str, says: str) -> None:
    async with Broker() as broker:
        client = connect(broker.url, version=version, reconnect=False)
        peer = await opened(broker, client, CONNACK_5 if version == "5" else CONNACK)
        publishing = asyncio.create_task(client.publish("a", b"", 1))
        await peer.expect(codec.PUBLISH)
        peer.hang_up()
        with pytest.raises(ConnectionError, match=says):
            await publishing
        await client.close()


async def test_a_silent_broker_is_left() -> None:
    async with Broker() as broker:
        client = connect(broker.url, keep_alive=1, reconnect=False)
        peer = await opened(broker, client, CONNACK_5)
        await peer.expect(codec.PINGREQ)
        with pytest.raises(ConnectionError, match="silent"):
            await anext(client.messages())
        await client.close()


async def test_the_keep_alive_of_the_broker_counts() -> None:
    async with Broker() as broker:
        client = connect(broker.url, keep_alive=600, version=5)
        peer = await opened(broker, client, limits(specification.SERVER_KEEP_ALIVE, 0, 1))
        for _ in range(2):
            await peer.expect(codec.PINGREQ)
            peer.say(codec.PINGRESP_PACKET)
        pinging = asyncio.create_task(client.ping())
        await peer.expect(codec.PINGREQ)
        peer.say(codec.PINGRESP_PACKET)
        await pinging
        await client.close()


@pytest.mark.parametrize(
    "garbage", [b"\x30\x00", b"\x30\x05\x00\x10abc", b"\x10\x00", b"\xff\xff\xff\xff\xff"]
)
async def test_garbage_ends_that_connection_only(garbage: bytes) -> None:
    async with Broker() as broker:
        client = connect(broker.url, backoff=SOON)
        peer = await opened(broker, client, CONNACK_5)
        peer.say(garbage)
        assert await peer.over()
        await (await broker.peer()).accept(CONNACK_5)
        await client.close()


async def test_callbacks_that_fail_stop_nobody(caplog: pytest.LogCaptureFixture) -> None:
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def listen(message: object) -> None:
        payload: bytes = message.payload  # type: ignore[attr-defined]
        if payload == b"bad":
            raise ValueError("bad")
        await heard.put(payload)

    async with Broker() as broker:
        client = connect(broker.url, version=4)
        client.on("#", listen)
        peer = await opened(broker, client)
        peer.say(codec.publish(b"a", b"bad", 1, packet_id=1), codec.publish(b"a", b"good", 0))
        assert await heard.get() == b"good"
        await peer.expect(codec.PUBACK)
        assert "a callback for a failed" in caplog.text
        await client.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clean": False}, "client_id"),
        ({"buffer": "x"}, "client_id"),
        ({"version": "6"}, "version"),
        ({"will": Will("", b"")}, "topic"),
        ({"keep_alive": 70_000}, "keep_alive"),
    ],
)
def test_what_does_not_fit_together(options: dict[str, object], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        connect("mqtt://127.0.0.1", **options)  # type: ignore[arg-type]
