"""5.0 beside the other protocols: what is said once arrives in everybody's own words."""

from __future__ import annotations

import json
from typing import cast

import pytest

from hubbub.protocols.mqtt import Mqtt, codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.smq import codec as smq
from hubbub.protocols.switch import Switch
from tests.protocols.mqtt.conversation import Stage
from tests.protocols.mqtt.modern import Modern, told
from tests.protocols.smq.device import Hub
from tests.wire import Far

POST = "POST {path} HTTP/1.1\r\ncontent-length: {size}\r\n\r\n{body}"


class Everything(Hub):
    """A hub in memory that speaks all three."""

    def __init__(self) -> None:
        super().__init__()
        self.mqtt = Mqtt(self.broker)
        self.switch = Switch(self.broker)

    def modern(self, client: str, *wishes: str | int) -> Modern:
        device = Modern(cast(Stage, self), client)
        if wishes:
            device.subscribe(*wishes)
        device.hear()
        return device

    def clerk(self, token: str) -> Far:
        far = self.dial(self.switch, f"GET /login/{token} HTTP/1.1\r\n\r\n".encode())
        far.hear()
        return far


def post(far: Far, path: str, body: str) -> str:
    far.say(POST.format(path=path, size=len(body), body=body).encode())
    return far.hear().partition(b"\r\n\r\n")[2].decode()


def test_an_smq_client_is_answered_through_the_response_topic() -> None:
    hub = Everything()
    ann = hub.modern("ann", "door", 1)
    device = hub.device(b"device-1")
    number = device.create(b"door")
    subtopic = device.create_sub(b"front")
    etid = next(n for n, session in hub.broker.clients.items() if session.client == "device-1")
    device.hear()
    device.publish(number, b"open?", subtopic)
    device.publish(number, b"open?", 4711)
    assert ann.hear() == [
        f"door=open? response-topic=$client/{etid} smq-subtopic:front",
        f"door=open? response-topic=$client/{etid} smq-subtid:4711",
    ]
    for unspeakable in (b"a\0b", b"\xff"):
        device.publish(number, b"open?", device.create_sub(unspeakable))
        assert ann.hear() == [f"door=open? response-topic=$client/{etid}"]
    device.bodies()
    front = codec.Properties(user=[(b"smq-subtopic", b"front")])
    ann.publish(f"$client/{etid}", b"yes", properties=front)
    [body] = device.bodies()
    assert body[0] == smq.PUBLISH
    assert int.from_bytes(body[9:13], "big") == subtopic
    assert smq.rest_of(body[0], body[1:]) == b"yes"


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("options", [0, codec.AS_PUBLISHED])
def test_so_is_one_that_says_several_in_one_piece(count: int, options: int) -> None:
    hub = Everything()
    ann, device = hub.modern("ann", "door", options), hub.device(b"device-1")
    number = device.create(b"door")
    frame = smq.framed(smq.message(smq.PUBLISH, number, device.etid, 0, rest=b"open?"))
    device.far.say(frame * count)
    assert ann.hear() == [f"door=open? response-topic=$client/{device.etid}"] * count


def test_a_call_to_message_switch() -> None:
    hub = Everything()
    ann, clerk = hub.modern("ann", "replies", 1), hub.clerk("clerk")
    hub.broker.queues.named("work")
    asked = told(None, {spec.RESPONSE_TOPIC: b"replies", spec.CORRELATION: b"42"})
    ann.publish("$queue/work", b"dig", 1, properties=asked)
    assert ann.hear() == ["PUBACK 1"]
    answer = json.loads(post(clerk, "/transfer", '{"timeout":0,"queues":["work"]}'))
    [[origin, message]] = answer["messages"]
    post(clerk, f"/response/{message['kind'][1]}/{origin[0]}/{origin[1]}", "dug")
    assert ann.hear() == ["replies=dug q1 #1 correlation-data=42"]


def test_a_request_of_message_switch_is_acknowledged_by_its_answer() -> None:
    hub = Everything()
    worker, clerk = hub.modern("worker", "$queue/work", 1), hub.clerk("clerk")
    hub.broker.queues.named("replies")
    post(clerk, "/request/work/replies", "dig")
    post(clerk, "/request/work/replies", "dig more")
    first, second = hub.broker.replies.open
    assert worker.hear() == [
        f"$queue/work=dig q1 #1 response-topic=$client/{first}",
        f"$queue/work=dig more q1 #2 response-topic=$client/{second}",
    ]
    worker.answer(codec.PUBACK, 1, 2)
    assert len(hub.broker.state.queues["work"].messages) == 2, "it can answer, so it must"
    worker.publish(f"$client/{first}", b"dug", 1)
    assert list(hub.broker.state.queues["work"].messages) == [1]
    [reply] = [hub.broker.log.read(s) for s in hub.broker.state.queues["replies"].messages.values()]
    assert reply is not None and reply.payload == b"dug"
    assert reply.properties == {"answers": ["work", 0]}
    other = hub.modern("other", "$queue/work", 1)
    assert other.hear() == []
    worker.disconnect()
    assert other.hear() == [f"$queue/work=dig more q1 #1 response-topic=$client/{second}"]
