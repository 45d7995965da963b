"""What was acknowledged survives `kill -9` at that very moment, three times on one directory."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hubbub.protocols.mqtt import codec
from hubbub.protocols.smq import codec as smq
from tests.process import RunningHub, StartHub
from tests.protocols.mqtt.conversation import in_words

pytestmark = [pytest.mark.interop, pytest.mark.slow]
ROUNDS = 3


class Peer:
    """A blocking socket: says packets, hears words until what it waits for has come."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._heard: list[str] = []
        self._rest = b""

    def say(self, *packets: bytes) -> None:
        self.sock.sendall(b"".join(packets))

    def hear_until(self, last: str) -> list[str]:
        """What came up to there; what comes after it is for the next time."""
        while last not in self._heard:
            data = self.sock.recv(65536)
            assert data, f"the hub closed the connection after {self._heard}"
            words, self._rest = in_words(self._rest + data)
            self._heard += words
        end = self._heard.index(last) + 1
        heard, self._heard = self._heard[:end], self._heard[end:]
        return heard

    def leave(self) -> None:
        """Until the hub has noticed: nothing is sent to it any more."""
        self.say(codec.DISCONNECT_PACKET)
        while self.sock.recv(65536):
            pass

    def publish(self, topic: str, payload: bytes, qos: int, retain: bool = False) -> None:
        """Until the last acknowledgement is there."""
        self.say(codec.publish(topic.encode(), payload, qos, retain, 7))
        self.hear_until("PUBACK 7" if qos == 1 else "PUBREC 7")
        if qos == 2:
            self.say(codec.acknowledgement(codec.PUBREL, 7))
            self.hear_until("PUBCOMP 7")


@contextmanager
def dialled(hub: RunningHub) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", hub.port), 20) as sock:
        yield sock


@contextmanager
def connected(hub: RunningHub, client: str, clean: bool = True) -> Iterator[Peer]:
    with dialled(hub) as sock:
        peer = Peer(sock)
        peer.say(codec.connect(client.encode(), clean, 0))
        yield peer


def test_qos_1_and_2_to_a_session_that_is_away(start_hub: StartHub) -> None:
    hub = start_hub()
    with connected(hub, "ann", clean=False) as ann:
        ann.say(codec.subscribe(5, [(b"a/#", 2)]))
        ann.hear_until("SUBACK 5: 2")
        ann.leave()
    payloads = []
    for number in range(ROUNDS):
        qos = 1 + number % 2
        payloads.append(f"a/b=message {number} q{qos} #{number + 1}")
        with connected(hub, "bob") as bob:
            bob.hear_until("CONNACK 0")
            bob.publish("a/b", b"message %d" % number, qos)
            hub.stop(signal.SIGKILL)
        hub = start_hub()
    heard: list[str] = []
    with connected(hub, "ann", clean=False) as ann:

        def hear(last: str) -> None:
            """All may come at once: the window is larger than that."""
            if last not in heard:
                heard.extend(ann.hear_until(last))

        for number, payload in enumerate(payloads):
            hear(payload)
            if number % 2:
                ann.say(codec.acknowledgement(codec.PUBREC, number + 1))
                hear(f"PUBREL {number + 1}")
                ann.say(codec.acknowledgement(codec.PUBCOMP, number + 1))
    assert [word for word in heard if "=" in word] == payloads


def test_a_qos_2_exchange_goes_on(start_hub: StartHub) -> None:
    """Killed after PUBREC: the publisher repeats, and nobody hears it twice."""
    hub = start_hub()
    with connected(hub, "ann", clean=False) as ann:
        ann.say(codec.subscribe(5, [(b"a", 1)]))
        ann.hear_until("SUBACK 5: 1")
        ann.leave()
    for number in range(1, ROUNDS + 1):
        with connected(hub, "bob", clean=False) as bob:
            bob.say(codec.publish(b"a", b"%d" % number, 2, packet_id=number))
            bob.hear_until(f"PUBREC {number}")
            hub.stop(signal.SIGKILL)
        hub = start_hub()
        with connected(hub, "bob", clean=False) as bob:
            bob.hear_until("CONNACK 0 present")
            bob.say(codec.publish(b"a", b"%d" % number, 2, packet_id=number, dup=True))
            bob.hear_until(f"PUBREC {number}")
            bob.say(codec.acknowledgement(codec.PUBREL, number))
            bob.hear_until(f"PUBCOMP {number}")
    with connected(hub, "ann", clean=False) as ann:
        last = f"a={ROUNDS} q1 #{ROUNDS}"
        heard = [word for word in ann.hear_until(last) if "=" in word]
        assert heard == [f"a={number} q1 #{number}" for number in range(1, ROUNDS + 1)]


def test_retained(start_hub: StartHub) -> None:
    hub = start_hub()
    for number in range(ROUNDS):
        with connected(hub, "bob") as bob:
            bob.hear_until("CONNACK 0")
            bob.publish(f"r/{number}", b"gone", 1, retain=True)
            bob.publish(f"r/{number}", b"" if number % 2 else b"kept", 1 + number % 2, retain=True)
            hub.stop(signal.SIGKILL)
        hub = start_hub()
    with connected(hub, "ann") as ann:
        ann.say(codec.subscribe(5, [(b"r/#", 0)]), codec.PINGREQ_PACKET)
        heard = [word for word in ann.hear_until("PINGRESP") if "=" in word]
    assert sorted(heard) == [f"r/{n}=kept retain" for n in range(0, ROUNDS, 2)]


class Web:
    """One HTTP connection, requests one after the other."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        self.sock.sendall(head.encode() + body)
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._more()
        answer, _, rest = data.partition(b"\r\n\r\n")
        size = next(
            int(line.partition(b":")[2])
            for line in answer.lower().split(b"\r\n")
            if line.startswith(b"content-length")
        )
        while len(rest) < size:
            rest += self._more()
        assert answer.startswith(b"HTTP/1.1 200"), answer
        return rest

    def _more(self) -> bytes:
        data = self.sock.recv(65536)
        if not data:
            raise ConnectionError("the hub is gone")
        return data


def test_a_queue_over_http(start_hub: StartHub) -> None:
    """Messages and their ids, which are never given twice."""
    hub = start_hub()
    with dialled(hub) as sock:
        Web(sock).ask("POST", "/bind/jobs", b"jobs/#")
    for number in range(ROUNDS):
        with dialled(hub) as sock:
            web = Web(sock)
            web.ask("POST", "/publish/$queue/jobs", b"sent %d" % number)
            web.ask("POST", "/publish/jobs/x?qos=1", b"bound %d" % number)
            hub.stop(signal.SIGKILL)
        hub = start_hub()
    with connected(hub, "ann") as ann:
        ann.say(codec.subscribe(5, [(b"$queue/jobs", 0)]), codec.PINGREQ_PACKET)
        heard = [word for word in ann.hear_until("PINGRESP") if "=" in word]
    assert [word.partition("=")[2] for word in heard] == [
        f"{way} {number}" for number in range(ROUNDS) for way in ("sent", "bound")
    ]
    with dialled(hub) as sock:
        status = json.loads(Web(sock).ask("GET", "/api/v1/status"))
    assert [(one["name"], one["next"]) for one in status["queues"]] == [("jobs", 2 * ROUNDS)]


def created(hub: RunningHub, name: bytes) -> int:
    """Create a topic over SMQ; its id, as soon as the hub has told it."""
    with dialled(hub) as sock:
        sock.sendall(b"GET / HTTP/1.0\r\nSimpleMQ: 1\r\n\r\n")
        data = b""
        for wanted, answer in (
            (smq.INIT, smq.message(smq.CONNECT, smq.VERSION, rest=b"\x06device\0")),
            (smq.CONNACK, smq.message(smq.CREATE, rest=name)),
            (smq.CREATEACK, b""),
        ):
            while not (end := smq.next_frame(data, 0)):
                piece = sock.recv(65536)
                assert piece
                data += piece
            assert data[2] == wanted
            body, data = data[3:end], data[end:]
            if answer:
                sock.sendall(smq.framed(answer))
        status, number = smq.numbers_of(smq.CREATEACK, body)
        assert status == smq.ACCEPTED
        return number


def test_topic_ids(start_hub: StartHub) -> None:
    hub = start_hub()
    ids = []
    for number in range(ROUNDS):
        ids.append(created(hub, b"sensors/%d" % number))
        hub.stop(signal.SIGKILL)
        hub = start_hub()
    assert len(set(ids)) == ROUNDS
    assert [created(hub, b"sensors/%d" % number) for number in range(ROUNDS)] == ids
