"""What is fuzzed: a function for each parser, which gets bytes and raises nothing but findings.

What a parser may raise is caught here, by the type that its caller expects. Beyond that a target
holds what must be true of any input: the same however it is split, the same said by two parts of
the hub that answer the same question. `run` adds bounds of time and memory to each call.
"""

from __future__ import annotations

import base64
import hmac
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from hubbub.auth import dynamic_commands
from hubbub.auth.acl import Acl
from hubbub.auth.dynamic import read_book, said
from hubbub.auth.guesses import Guesses
from hubbub.auth.passwords import read_users
from hubbub.auth.scram import Accounts, Scram, Verifier, make_verifier, read_verifier
from hubbub.auth.tokens import BadToken, Tokens
from hubbub.cluster import frames
from hubbub.cluster.node import messages_of
from hubbub.config import mosquitto_conf
from hubbub.config.identity import Jwt
from hubbub.core import topics
from hubbub.core.message import SPELLED
from hubbub.core.rights import Rights
from hubbub.core.session import Session, Subscription
from hubbub.errors import DirectoryError, JournalError, ProtocolError, SettingError
from hubbub.journal import frame
from hubbub.journal.arrow import BATCH, BODY_AT
from hubbub.journal.content import Content, Header
from hubbub.journal.table import batch_of, frames_in, plain_column
from hubbub.pipeline.decode import Undecodable, leaves
from hubbub.protocols.mqtt import codec as mqtt_codec
from hubbub.protocols.smq import codec as smq_codec
from hubbub.protocols.switch import codec as switch_codec
from hubbub.spark.filters import pattern_of
from hubbub.web import publish
from hubbub.wire import proxy
from hubbub.wire.http import Request, Requests, authorization, parse_head
from hubbub.wire.websocket import Frames
from tests.fuzz.connections import connection
from tests.protocols.mqtt.whole import parse_subscribe, parse_unsubscribe

Feed = Callable[[bytes], None]

# A file system in memory, where there is one: some parsers read files.
_MEMORY: Final = "/dev/shm" if Path("/dev/shm").is_dir() else None
_FOLDER: Final = tempfile.TemporaryDirectory(prefix="hubbub-fuzz-", dir=_MEMORY)

BODY_BYTES: Final = 1 << 20


def file_of(data: bytes) -> Path:
    path = Path(_FOLDER.name) / "input"
    path.write_bytes(data)
    return path


# Protocols


def mqtt(data: bytes) -> None:
    """A stream of packets; the first byte says of which version."""
    version, data = data[:1], data[1:]
    v5 = version > b"4"
    with suppress(ProtocolError):
        for start, body, end in mqtt_codec.packets(data, 1 << 20):
            _mqtt_packet(data[start], data[body:end], v5)


def _mqtt_packet(head: int, body: bytes, v5: bool) -> None:
    kind = head >> 4
    if kind == 1:
        mqtt_codec.parse_connect(body)
    elif kind == 3:
        mqtt_codec.parse_publish(head, body, v5)
    elif kind == 8:
        parse_subscribe(body, v5)
    elif kind == 10:
        parse_unsubscribe(body, v5)
    elif kind in (4, 5, 6, 7):
        mqtt_codec.parse_answer(kind, body) if v5 else mqtt_codec.parse_packet_id(kind, body)
    elif kind in (14, 15) and v5:
        mqtt_codec.parse_ending(kind, body)


def smq(data: bytes) -> None:
    """Frames as a device sends them; what a Connect says comes back when it is built again."""
    at = 0
    with suppress(ProtocolError):
        while end := smq_codec.next_frame(data, at):
            kind, body = data[at + 2], data[at + 3 : end]
            at = end
            if kind == smq_codec.CONNECT:
                _smq_connect(body)
            elif kind in smq_codec.LAYOUTS:
                numbers = smq_codec.numbers_of(kind, body)
                again = smq_codec.message(kind, *numbers, rest=smq_codec.rest_of(kind, body))
                assert again[1:] == body


def _smq_connect(body: bytes) -> None:
    said = smq_codec.parse_connect(body)
    built = smq_codec.build_connect(said.uid, said.credentials, said.info)
    assert smq_codec.parse_connect(built[1:]) == said._replace(largest=0)


def http(data: bytes) -> None:
    """Requests, whole and cut in two; the first byte says where. Then what the dialects ask."""
    cut, data = data[:1], data[1:]
    whole, failed = _requests([data])
    place = cut[0] % (len(data) + 1) if cut else 0
    halves, failed_too = _requests([data[:place], data[place:]])
    said = [(one.method, one.target, one.headers, one.body) for one in whole]
    assert said == [(one.method, one.target, one.headers, one.body) for one in halves]
    assert failed == failed_too
    with suppress(ProtocolError):
        parse_head(data)
    for request in whole:
        authorization(request.headers.get("authorization", ""))
        _switch(request)


def _requests(pieces: list[bytes]) -> tuple[list[Request], bool]:
    parser = Requests(16 << 10, BODY_BYTES)
    found: list[Request] = []
    try:
        for piece in pieces:
            found += parser.feed(piece)
            if found and not found[-1].keep_alive:
                break
    except ProtocolError:
        return found, True
    return found, False


def _switch(request: Request) -> None:
    with suppress(ValueError, switch_codec.Refused):
        call = switch_codec.call_of(request)
        if call is not None and request.body:
            switch_codec.wanted_of(request.body)


def websocket(data: bytes) -> None:
    """Frames of a client, whole and cut in two; the first byte says where."""
    cut, data = data[:1], data[1:]
    place = cut[0] % (len(data) + 1) if cut else 0
    assert _messages([data]) == _messages([data[:place], data[place:]])


def _messages(pieces: list[bytes]) -> tuple[list[bytes], list[bytes], bool]:
    frames = Frames(BODY_BYTES)
    found: list[bytes] = []
    try:
        for piece in pieces:
            found += frames.feed(piece)
    except ProtocolError:
        return found, frames.replies, True
    return found, frames.replies, False


def balancer(data: bytes) -> None:
    """What a balancer says before its client: a header that is there stays what it is, whatever
    follows it, and none is there before it is whole.
    """
    with suppress(ProtocolError):
        header = proxy.parse(data)
        if header is not None:
            assert header.size <= len(data)
            assert proxy.parse(data[: header.size]) == header
            assert proxy.parse(data[: header.size - 1]) is None


# Of who lets others in


_KEY: Final = b"a key that is known to who fuzzes"


def _tokens() -> Tokens:
    file = Path(_FOLDER.name) / "keys"
    key = base64.urlsafe_b64encode(_KEY).rstrip(b"=").decode()
    file.write_text(f'{{"keys": [{{"kty": "oct", "k": "{key}", "alg": "HS256"}}]}}')
    return Tokens(Jwt(keys=str(file), algorithms=("HS256",), acl_claim="acl"))


_TOKENS: Final = _tokens()


def token(data: bytes) -> None:
    """A token as it is; then one that is signed, and says this: its header and claims, a line
    each.
    """
    with suppress(BadToken):
        _TOKENS.check(data)
    parts = [base64.urlsafe_b64encode(part).rstrip(b"=") for part in data.split(b"\n", 1)]
    said_so = b".".join(parts)
    made = base64.urlsafe_b64encode(hmac.digest(_KEY, said_so, "sha256")).rstrip(b"=")
    with suppress(BadToken):
        _TOKENS.check(said_so + b"." + made)


def control(data: bytes) -> None:
    """Commands of dynamic security: each is answered, and the file can be read again."""
    book = read_book("{}", "nowhere")
    done = dynamic_commands.run(book, data)
    msgspec.json.encode(done.answer)
    text = said(book)
    assert said(read_book(text, "nowhere")) == text


def line(data: bytes) -> None:
    """A line of `POST /api/v1/publish`: what is not complained of can be published."""
    found, _ = publish._complaint(memoryview(data), 1 << 20, lambda topic: True)
    if not found:
        publish._LINE.decode(data).message(0)


def cluster(data: bytes) -> None:
    """Pieces in a frame of another node, whose checksum is right; a frame as it is."""
    for one in (data, frames.frame("here", 1, 2, 3, data)):
        with suppress(frames.Foreign):
            for record in frames.opened(one).records:
                if isinstance(record, frames.Said) and record.rests:
                    messages_of(record, "a")


# The journal


def sealed(data: bytes) -> bytes:
    """A frame of these bytes whose length and checksum are right."""
    data = data[: len(data) & ~7]
    least = frame.HEADER.size + len(BATCH)
    if len(data) < least:
        return data
    made = bytearray(data)
    message = frame.HEADER.size
    made[message : message + 8] = BATCH[:8]
    made[message + BODY_AT : message + BODY_AT + 8] = (len(made) - least).to_bytes(8, "little")
    made[0:4] = len(made).to_bytes(4, "little")
    made[4:8] = crc32(memoryview(made)[8:]).to_bytes(4, "little")
    return bytes(made)


def journal_frame(data: bytes) -> None:
    """A frame as it is, and as somebody forged it who knows how to make a checksum."""
    for view in (memoryview(data), memoryview(sealed(data))):
        found = frame.scan(view, 0)
        if found.verdict == frame.WHOLE:
            with suppress(JournalError):
                rows = frame.decode(view, 0)
                assert len(rows) == found.rows


def journal_file(data: bytes) -> None:
    """A segment behind a right header: each byte of it belongs to one frame, or to a stretch."""
    with Content(file_of(Header(1, 0, 1).encode() + data)) as content:
        assert content.header() is not None
        end = 0
        for found in content.frames():
            assert found.size > 0 and found.at >= end
            end = found.at + found.size
            if found.verdict == frame.WHOLE:
                with suppress(JournalError):
                    content.rows(found)
        assert end <= content.size
    with Content(file_of(data)) as content, suppress(DirectoryError):
        content.header()


def journal_table(data: bytes) -> None:
    """What Spark's readers make of a forged frame."""
    made = sealed(data)
    with suppress(JournalError):
        for found in frames_in(made):
            for column in batch_of(made, found):
                plain_column(column)


# Payloads

TYPES: Final = ("", "application/json", "application/cbor", "application/msgpack", "text/plain")


def payload(data: bytes) -> None:
    """A payload; its first byte says of which type."""
    declared = TYPES[data[0] % len(TYPES)] if data else ""
    with suppress(Undecodable):
        leaves(data[1:], declared)


# Files of settings


def mosquitto(data: bytes) -> None:
    with suppress(SettingError):
        mosquitto_conf.read(file_of(data))


def acl(data: bytes) -> None:
    with suppress(SettingError):
        rights = Acl(file_of(data)).rights("ann", "client")
        for verb in ("publish", "subscribe", "receive"):
            rights.may(verb, "a/b")
            rights.explain(verb, "a/#")


def passwords(data: bytes) -> None:
    with suppress(SettingError):
        read_users(file_of(data))


# Names


def names(data: bytes) -> None:
    """A filter and a name, a line each: all who decide whether they match say the same."""
    said, _, name = data.decode("utf-8", "surrogateescape").partition("\n")
    topics.shared_filter(said)
    topics.delayed_topic(topics.DELAYED + said)
    topics.client_number(said)
    if not (topics.is_filter(said) and topics.is_name(name)):
        return
    matches = topics.matches(said, name)
    tree = topics.Filters()
    session = Session("test", "ann", Rights())
    subscription = Subscription(session, said, 0, (SPELLED, SPELLED, SPELLED))
    tree.add(subscription)
    assert tree.match(name) == ([subscription] if matches else [])
    tree.remove(subscription)
    assert not tree.match(name)
    if "," not in said:
        found = re.fullmatch(pattern_of([said]) or "", name, re.DOTALL)
        assert (found is not None) == matches


class _OneUser(Accounts):
    known: Final = make_verifier(b"secret", 1)

    def verifier(self, user: str) -> Verifier:
        assert self.known is not None
        return self.known


def scram(data: bytes) -> None:
    """What a client says in a SCRAM exchange, a line each, and the verifier of a file."""
    exchange = Scram(_OneUser(), lambda user: (None, "no"), Guesses(lambda: 0.0))
    for step in data.split(b"\n")[:3]:
        if exchange.step(step).done:
            break
    with suppress(ValueError):
        read_verifier(data.decode("latin-1"))


TARGETS: Final[dict[str, Feed]] = {
    "mqtt": mqtt,
    "smq": smq,
    "http": http,
    "websocket": websocket,
    "balancer": balancer,
    "token": token,
    "control": control,
    "line": line,
    "cluster": cluster,
    "journal_frame": journal_frame,
    "journal_file": journal_file,
    "journal_table": journal_table,
    "payload": payload,
    "mosquitto_conf": mosquitto,
    "acl": acl,
    "passwords": passwords,
    "names": names,
    "scram": scram,
    "connection": connection,
}


def corpus(name: str) -> Iterator[bytes]:
    folder = Path(__file__).parent / "corpus" / name
    for file in sorted(folder.iterdir()):
        yield file.read_bytes()
