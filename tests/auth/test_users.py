"""A session is its user's: who comes back under its name as somebody else finds nothing of it.

Conversations in memory with a gate that believes every user name and gives each the rights of the
test; what a restart must know is folded from the rows.
"""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest

from hubbub.core.broker import Broker
from hubbub.core.gate import Credentials, Exchange, Gate, Step
from hubbub.core.message import Message
from hubbub.core.rights import Rights
from hubbub.protocols.mqtt import Mqtt, codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.mqtt.codec import Properties
from hubbub.protocols.smq import Smq
from hubbub.protocols.smq import codec as smq
from hubbub.protocols.switch import Switch
from tests.core.recording import folded
from tests.protocols.mqtt.conversation import Stage
from tests.protocols.smq.device import HEAD
from tests.protocols.switch.journaled import get, post, transfer
from tests.rights import ruled
from tests.wire import Far


class Town(Gate):
    """Lets in whoever says a name; `rights` by user, everything for those not in it."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.open)
        self.by_user: dict[str, Rights] = {}

    def of(self, user: str) -> Rights:
        return self.by_user.get(user, self.rights)

    def authenticate(
        self, credentials: Credentials, done: Callable[[Rights | None, str], None]
    ) -> None:
        if credentials.secret == b"wrong":
            done(None, "wrong user name or password")
        else:
            done(self.of(credentials.user), "")

    def exchange(self, method: str, credentials: Credentials) -> Exchange | None:
        return Word(self, credentials)


class Word(Exchange):
    """Two steps: the first says who it is, the second anything."""

    def __init__(self, town: Town, credentials: Credentials) -> None:
        self.town, self.credentials, self.user = town, credentials, ""

    def step(self, data: bytes) -> Step:
        if not self.user:
            self.user = data.decode()
            return Step(False, b"and?")
        self.credentials.user = self.user
        return Step(True, rights=self.town.of(self.user))


class House(Stage):
    def __init__(self) -> None:
        super().__init__()
        self.gate: Town = Town(self.broker)
        self.switch, self.smq = Switch(self.broker), Smq(self.broker)

    def mqtt_client(self, client: bytes, user: bytes, clean: bool = False) -> Far:
        far = self.dial(self.mqtt)
        far.say(codec.connect(client, clean, 0, None, user, b"x"))
        return far

    def smq_client(self, uid: bytes, user: bytes) -> tuple[Far, int]:
        far = self.dial(self.smq, HEAD)
        far.hear()
        body = bytes((len(uid),)) + uid + bytes((len(user) + 2,)) + user + b":x"
        far.say(codec_smq(smq.CONNECT, smq.VERSION, rest=body))
        return far, int.from_bytes(far.hear()[4:8], "big")


def codec_smq(kind: int, *numbers: int, rest: bytes = b"") -> bytes:
    return smq.framed(smq.message(kind, *numbers, rest=rest))


def present(connack: bytes) -> bool:
    assert connack[0] == 0x20 and connack[3] == 0, connack
    return connack[2] == 1


@pytest.fixture
def house() -> House:
    return House()


def leave_something(house: House) -> None:
    """Ann's lasting session: a topic, a queue, and a message that waits."""
    house.gate.by_user["ann"] = ruled("read secret", "read $queue/q")
    ann = house.mqtt_client(b"phone", b"ann")
    ann.say(codec.subscribe(1, [(b"secret", 1), (b"$queue/q", 1)]))
    ann.hang_up()
    house.broker.post(Message("secret", b"for ann", 1))
    house.broker.post(Message("$queue/q", b"for ann", 1))


def test_the_same_user_finds_its_session(house: House) -> None:
    leave_something(house)
    ann = house.mqtt_client(b"phone", b"ann")
    heard = ann.hear()
    assert present(heard) and heard.count(b"for ann") == 2


@pytest.mark.parametrize("connected", [True, False])
def test_another_user_finds_nothing_of_it(house: House, connected: bool) -> None:
    leave_something(house)
    if connected:
        house.mqtt_client(b"phone", b"ann")
    eve = house.mqtt_client(b"phone", b"eve")
    heard = eve.hear()
    assert not present(heard) and b"for ann" not in heard
    house.broker.post(Message("secret", b"for ann", 1))
    house.broker.post(Message("$queue/q", b"for ann", 1))
    assert eve.hear() == b"", "neither its topics nor its queue"
    assert house.log.kinds().count("end") == 1, "a row says that it is over"


def test_it_is_so_after_a_restart(house: House) -> None:
    leave_something(house)
    again = House()
    again.log.rows = house.log.rows
    again.log.position = again.log.durable = len(house.log.rows)
    again.broker.state = folded(house.log.rows)
    again.mqtt = Mqtt(again.broker)
    again.broker.recover([again.mqtt])
    assert again.broker.state.sessions["mqtt", "phone"].user == "ann"
    eve = again.mqtt_client(b"phone", b"eve")
    heard = eve.hear()
    assert not present(heard) and b"for ann" not in heard


def test_the_address_stays_with_its_user(house: House) -> None:
    house.mqtt_client(b"phone", b"ann")
    [number] = house.broker.clients
    house.mqtt_client(b"phone", b"ann")
    assert list(house.broker.clients) == [number]
    house.mqtt_client(b"phone", b"eve")
    assert number not in house.broker.clients
    _, first = house.smq_client(b"device", b"ann")
    _, second = house.smq_client(b"device", b"ann")
    _, third = house.smq_client(b"device", b"eve")
    assert first == second != third


# Enhanced authentication


def modern(house: House, user: bytes) -> Far:
    far = house.dial(house.mqtt)
    texts = {spec.AUTH_METHOD: b"WORD", spec.AUTH_DATA: user}
    far.say(codec.connect(b"phone", True, 0, properties=Properties(texts=texts)))
    assert far.hear()[0] == 0xF0
    far.say(auth(spec.CONTINUE, b"word"))
    assert far.hear()[0] == 0x20
    return far


def auth(code: int, data: bytes) -> bytes:
    texts = {spec.AUTH_METHOD: b"WORD", spec.AUTH_DATA: data}
    return codec.auth(code, Properties(texts=texts).encode())


def test_nobody_becomes_another_user_on_the_way(house: House) -> None:
    ann = modern(house, b"ann")
    ann.say(auth(spec.REAUTHENTICATE, b"eve"))
    ann.hear()
    ann.say(auth(spec.CONTINUE, b"word"))
    assert ann.hear()[:3] == b"\xe0" + ann_length() and ann.closed


def ann_length() -> bytes:
    """The rest of a DISCONNECT with the code 0x87 and the reason."""
    reason = b"an AUTH as another user than 'ann'"
    return bytes((len(reason) + 5, spec.NOT_ALLOWED))


def test_rights_that_become_fewer_bite_at_once(house: House) -> None:
    """In the routes that are known, and in what comes."""
    house.gate.by_user["ann"] = ruled("readwrite t")
    ann, bob = modern(house, b"ann"), house.mqtt_client(b"bob", b"bob", True)
    for far in (ann, bob):
        far.say(codec.subscribe(1, [(b"t", 0)], codec.NO_PROPERTIES if far is ann else b""))
        far.hear()
    ann.say(codec.publish(b"t", b"one", 0, properties=codec.NO_PROPERTIES))
    assert b"one" in bob.hear() and b"one" in ann.hear()
    house.gate.by_user["ann"] = ruled()
    ann.say(auth(spec.REAUTHENTICATE, b"ann"))
    ann.say(auth(spec.CONTINUE, b"word"))
    ann.hear()
    ann.say(codec.publish(b"t", b"two", 0, properties=codec.NO_PROPERTIES))
    bob.say(codec.publish(b"t", b"three", 0))
    heard = bob.hear()
    assert b"three" in heard and b"two" not in heard
    assert ann.hear() == b""


def test_an_exchange_under_way_changes_nobody(house: House) -> None:
    """Who is asked whether it may stay is whom the gate let in."""
    ann = modern(house, b"ann")
    opening = ann.connection.opening
    assert opening.credentials is not None and opening.credentials.user == "ann"
    ann.say(auth(spec.REAUTHENTICATE, b"eve"))
    assert opening.credentials.user == "ann"


# message-switch: what a connection remembers


def basic(user: str, secret: str = "x") -> bytes:
    return b"Authorization: Basic " + base64.b64encode(f"{user}:{secret}".encode()) + b"\r\n"


def with_header(request: bytes, header: bytes) -> bytes:
    head, end, body = request.partition(b"\r\n\r\n")
    return head + b"\r\n" + header.rstrip() + end + body


def test_a_visitor_is_forgotten_after_its_request(house: House) -> None:
    house.gate.by_user.update({"ann": ruled("write t"), "": ruled(), "eve": ruled()})
    far = house.dial(house.switch)
    publish = post("/publish/t", b"x")
    for header, status in (
        (basic("ann"), b"200"), (b"X: y", b"403"), (basic("eve"), b"403"),
        (basic("ann", "wrong"), b"401"), (basic("ann"), b"200"),
    ):  # fmt: skip
        far.say(with_header(publish, header))
        assert far.hear().startswith(b"HTTP/1.1 " + status), header


def test_who_shows_other_credentials_is_not_who_logged_in(house: House) -> None:
    house.gate.by_user["eve"] = ruled()
    far = house.dial(house.switch)
    far.say(with_header(get("/login/me"), basic("ann")))
    for request, header, status in (
        (get("/list/"), b"X: y", b"200"), (get("/list/"), basic("ann"), b"200"),
        (get("/list/"), basic("eve"), b"403"), (post("/publish/t", b"x"), basic("eve"), b"403"),
        (post("/publish/t", b"x"), basic("bob"), b"200"),
    ):  # fmt: skip
        far.hear()
        far.say(with_header(request, header))
        assert far.hear().startswith(b"HTTP/1.1 " + status), (request, header)


def test_a_token_is_its_users(house: House) -> None:
    ann, eve = house.dial(house.switch), house.dial(house.switch)
    ann.say(with_header(get("/login/me"), basic("ann")))
    ann.hear()
    eve.say(with_header(get("/login/me"), basic("eve")))
    assert eve.hear().startswith(b"HTTP/1.1 403")


def test_a_queue_waits_for_its_user_and_not_for_its_token(house: House) -> None:
    house.gate.by_user.update({"ann": ruled(), "eve": ruled()})

    def log_in(user: str) -> Far:
        far = house.dial(house.switch)
        far.say(with_header(get("/login/me?grace=60"), basic(user)))
        assert far.hear().startswith(b"HTTP/1.1 200")
        return far

    ann = log_in("ann")
    ann.say(get("/transient/mine"))
    ann.hang_up()
    house.broker.post(Message("$queue/mine", b"for ann", 1))
    for user, status in (("eve", b"403"), ("ann", b"200")):
        far = log_in(user)
        far.say(transfer("mine"))
        assert far.hear().startswith(b"HTTP/1.1 " + status)
        far.hang_up()
