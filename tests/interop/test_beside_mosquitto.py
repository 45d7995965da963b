"""Where the standard leaves a choice: the same bytes to mosquitto and to a hub, answer by answer.

`ALIKE` are answered by both in the same words. `DIFFERENT` are not, for the reason that stands
there, and in docs/reference/mqtt-conformance.md.
"""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt.codec import Will, string
from tests.interop.beside import Conversation, both, converse

pytestmark = pytest.mark.interop

OPEN: Final = "user root\npersistence false\nlistener PORT 127.0.0.1\nallow_anonymous true\n"
VERSIONS: Final = (4, 5)
NOTHING: Final = {4: b"", 5: codec.NO_PROPERTIES}
DEEPEST: Final = 199  # slashes


def hello(
    version: int, client: bytes = b"c", will: Will | None = None, user: bytes | None = None,
    password: bytes | None = None,
) -> bytes:  # fmt: skip
    properties = codec.Properties() if version == 5 else None
    return codec.connect(client, True, 60, will, user, password, properties)


def publish(
    version: int, qos: int = 0, topic: bytes = b"t", number: int = 1, dup: bool = False
) -> bytes:
    return codec.publish(topic, b"x", qos, False, number if qos else 0, dup, NOTHING[version])


def subscribe(version: int, topic_filter: bytes, qos: int = 0) -> bytes:
    return codec.subscribe(5, [(topic_filter, qos)], NOTHING[version])


def told(version: int, flags: int, *fields: bytes, after: bytes = b"") -> bytes:
    """A CONNECT of any flags and fields."""
    head = string(b"MQTT") + bytes((version, flags, 0, 60)) + NOTHING[version]
    return codec.packet(codec.CONNECT, head + b"".join(map(string, fields)) + after)


def answered(version: int, qos: int, *kinds: int) -> Conversation:
    """A client's own message comes to it, and it answers with packets of these kinds."""
    published = [publish(version, qos, number=9)]
    if qos == 2:
        published.append(codec.acknowledgement(codec.PUBREL, 9))
    answers = [codec.acknowledgement(kind, 1) for kind in kinds]
    return (hello(version), subscribe(version, b"t", 2), *published, *answers)


def lies(version: int) -> dict[str, Conversation]:
    nothing = NOTHING[version]
    will = nothing + string(b"w") + string(b"x")
    return {
        "the reserved flag": (told(version, 2 | 1, b"c"),),
        "a will's QoS and no will": (told(version, 2 | 8, b"c"),),
        "a will's retain and no will": (told(version, 2 | 0x20, b"c"),),
        "a will of QoS 3": (told(version, 2 | 4 | 0x18, b"c", after=will),),
        "a will that is not there": (told(version, 2 | 4, b"c"),),
        "a user that is not there": (told(version, 2 | 0x80, b"c"),),
        "a password that is not there": (told(version, 2 | 0xC0, b"c", b"u"),),
        "a user that is not said": (told(version, 2, b"c", b"u"),),
        "no client id": (told(version, 2),),
    }


def unfit(version: int, what: str, text: bytes) -> dict[str, Conversation]:
    """The same characters in everything that has a name."""
    return {
        f"{what} in a client id": (hello(version, text),),
        f"{what} in a user": (hello(version, user=text, password=b"p"),),
        f"{what} in a will's topic": (hello(version, will=Will(text, b"x", 0, False)),),
        f"{what} in a topic": (hello(version), publish(version, 1, text)),
        f"{what} in a filter": (hello(version), subscribe(version, text)),
        f"{what} in what is unsubscribed": (
            hello(version), codec.unsubscribe(5, [text], NOTHING[version]),
        ),
    }  # fmt: skip


UNFIT: Final = {
    "U+0001": b"a\x01b", "a line end": b"a\nb", "U+007F": b"a\x7fb", "U+0085": "a\x85b".encode(),
    "U+FFFF": "a\uffffb".encode(), "U+FDD0": "a\ufdd0b".encode(),
    "U+1FFFE": "a\U0001fffeb".encode(), "a surrogate": b"a\xed\xa0\x80b", "U+0000": b"a\0b",
}  # fmt: skip


def alike(version: int) -> dict[str, Conversation]:
    found = lies(version)
    for what, text in UNFIT.items():
        found |= unfit(version, what, text)
    found |= unfit(version, "a byte order mark", "a\ufeffb".encode())
    for topic in (b"", b"a/+", b"#"):
        found[f"a will to {topic!r}"] = (hello(version, will=Will(topic, b"x", 0, False)),)
    found |= {
        "its own copy of QoS 2": answered(version, 2),
        "its own copy, at once": (
            hello(version), subscribe(version, b"t", 2),
            publish(version, 2, number=9) + codec.acknowledgement(codec.PUBREL, 9),
        ),
        "its own copy, lower": (
            hello(version), subscribe(version, b"t", 1), publish(version, 2, number=9),
            codec.acknowledgement(codec.PUBREL, 9),
        ),
        "its own copy of QoS 1": answered(version, 1),
        "PUBREC twice": answered(version, 2, codec.PUBREC, codec.PUBREC),
        "DUP with QoS 0": (hello(version), b"\x38" + publish(version)[1:]),
        "QoS 1 twice": (
            hello(version), subscribe(version, b"t", 1), publish(version, 1),
            publish(version, 1, dup=True),
        ),
        "the deepest filter": (hello(version), subscribe(version, b"/" * DEEPEST)),
        "a PUBACK for nothing": (hello(version), codec.acknowledgement(codec.PUBACK, 7)),
        "a PUBCOMP for nothing": (hello(version), codec.acknowledgement(codec.PUBCOMP, 7)),
        "no user": (hello(version),),
    }  # fmt: skip
    if version == 4:
        found |= {
            "PUBREC for QoS 1": answered(version, 1, codec.PUBREC),
            "PUBCOMP for QoS 1": answered(version, 1, codec.PUBCOMP),
            "PUBACK for QoS 2": answered(version, 2, codec.PUBACK),
            "PUBCOMP too early": answered(version, 2, codec.PUBCOMP),
            "PUBACK after PUBREC": answered(version, 2, codec.PUBREC, codec.PUBACK),
        }
    return found


def heard(port: int, table: dict[str, Conversation]) -> dict[str, list[str]]:
    return {name: converse(port, steps) for name, steps in table.items()}


def side_by_side(
    folder: Path, text: str, table: dict[str, Conversation]
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """What a hub and mosquitto answer, both at the same time."""
    with both(folder, text) as ports, ThreadPoolExecutor(2) as pool:
        ours, theirs = pool.map(lambda port: heard(port, table), ports)
        return ours, theirs


def in_common(answers: list[str]) -> list[str]:
    """Without the DISCONNECT of 5.0: its codes are more exact here, and it is never left out."""
    return [one for one in answers if not one.startswith("DISCONNECT")]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_same_bytes_are_answered_alike(version: int, tmp_path: Path) -> None:
    ours, theirs = side_by_side(tmp_path, OPEN, alike(version))
    for name, answers in ours.items():
        assert in_common(answers) == in_common(theirs[name]), name


# What is not answered alike: the steps, here, there, why.
DIFFERENT: Final[dict[str, tuple[Conversation, list[str], list[str], str]]] = {
    "a filter too deep": (
        (hello(4), subscribe(4, b"/" * 300)),
        ["CONNACK 0x00", "SUBACK 5: 0x80", "open"],
        ["CONNACK 0x00", "closed"],
        "the other filters of the packet are good",
    ),
    "a PINGREQ with flags": (
        (hello(4), b"\xc1\0"),
        ["CONNACK 0x00", "closed"],
        ["CONNACK 0x00", "PINGRESP", "open"],
        "3.1.1 [2.2.2-2] and 5.0 [2.1.3-1] demand the end",
    ),
    "a PINGRESP of a client": (
        (hello(4), b"\xd0\0"),
        ["CONNACK 0x00", "closed"],
        ["CONNACK 0x00", "open"],
        "a client has no such packet",
    ),
    "a group without a name": (
        (hello(4), subscribe(4, b"$share//a")),
        ["CONNACK 0x00", "SUBACK 5: 0x80", "open"],
        ["CONNACK 0x00", "SUBACK 5: 0x00", "open"],
        "nothing would ever come: 5.0 [4.8.2-1] demands the name",
    ),
    "a level to come": (
        (codec.packet(codec.CONNECT, string(b"MQTT") + b"\6\2\0\x3c\0" + string(b"c")),),
        ["CONNACK 0x84", "closed"],
        ["CONNACK 0x01", "closed"],
        "who speaks 6 reads reason codes",
    ),
    "a PUBREC for nothing": (
        (hello(5), codec.acknowledgement(codec.PUBREC, 7)),
        ["CONNACK 0x00", "PUBREL 7 0x92", "open"],
        ["CONNACK 0x00", "PUBREL 7", "open"],
        "5.0 has a code for it",
    ),
    "a line end in a user property": (
        (hello(5), codec.publish(
            b"t", b"x", 1, False, 1, False, codec.Properties(user=[(b"k", b"a\nb")]).encode()
        )),
        ["CONNACK 0x00", "PUBACK 1 0x10", "open"],
        ["CONNACK 0x00", "closed"],
        "it is a value and no name, and people put text there",
    ),
    "a payload that is no text": (
        (hello(5), codec.publish(b"t", b"\xff", 1, packet_id=1, properties=b"\2\1\1")),
        ["CONNACK 0x00", "PUBACK 1 0x99", "open"],
        ["CONNACK 0x00", "PUBACK 1 0x10", "open"],
        "it says that it is: 5.0 has a code for it",
    ),
    "a shared subscription with no local": (
        (hello(5), subscribe(5, b"$share/g/a", codec.NO_LOCAL)),
        ["CONNACK 0x00", "DISCONNECT 0x82", "closed"],
        ["CONNACK 0x00", "SUBACK 5: 0x00", "open"],
        "5.0 [3.8.3-4]",
    ),
    "a will that is no text": (
        (hello(5, will=Will(b"w", b"\xff", 0, False, codec.Properties({1: 1}))),),
        ["closed"],
        ["CONNACK 0x00", "open"],
        "it says that it is, and nobody could be told when it is published",
    ),
}  # fmt: skip


def test_what_is_different_is_known(tmp_path: Path) -> None:
    table = {name: steps for name, (steps, *_) in DIFFERENT.items()}
    ours, theirs = side_by_side(tmp_path, OPEN, table)
    for name, (_, here, there, why) in DIFFERENT.items():
        assert (ours[name], theirs[name]) == (here, there), f"{name}: {why}"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_login_without_a_password(version: int, tmp_path: Path) -> None:
    """It is refused as not authorised, as there; a wrong password has a code of its own here."""
    command = ("mosquitto_passwd", "-b", str(tmp_path / "users"), "ann", "secret")
    (tmp_path / "users").touch(0o644)
    subprocess.run(command, check=True, timeout=20, capture_output=True)
    (tmp_path / "users").chmod(0o644)
    text = OPEN.replace("true", "false") + f"password_file {tmp_path}/users\n"
    ours, theirs = side_by_side(tmp_path, text, {
        "right": (hello(version, user=b"ann", password=b"secret"),),
        "missing": (hello(version, user=b"ann"),),
        "wrong": (hello(version, user=b"ann", password=b"x"),),
        "nobody": (hello(version),),
    })  # fmt: skip
    assert ours.pop("wrong") == ["CONNACK 0x04" if version == 4 else "CONNACK 0x86", "closed"]
    refused = ["CONNACK 0x05" if version == 4 else "CONNACK 0x87", "closed"]
    assert theirs.pop("wrong") == refused
    assert ours == theirs == {
        "right": ["CONNACK 0x00", "open"], "missing": refused, "nobody": refused,
    }  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
def test_upgraded_messages(version: int, tmp_path: Path) -> None:
    """`upgrade_outgoing_qos`: each subscription its own QoS, live and retained."""
    nothing = NOTHING[version]
    table: dict[str, Conversation] = {}
    for qos in (0, 1, 2):
        for asked in (0, 1, 2):
            for kept in (False, True):
                topic = b"t%d%d%d" % (qos, asked, kept)
                published = codec.publish(topic, b"x", qos, kept, 7 * (qos > 0), False, nothing)
                said = published + codec.acknowledgement(codec.PUBREL, 7) * (qos == 2)
                subscribed = subscribe(version, topic, asked)
                steps = (said, subscribed) if kept else (subscribed, said)
                table[topic.decode()] = (hello(version), *steps)
    text = f"{OPEN}upgrade_outgoing_qos true\n"
    ours, theirs = side_by_side(tmp_path, text, table)
    for name, answers in ours.items():  # there a PUBREC does not say that nobody listens
        assert [one.removesuffix(" 0x10") for one in answers] == [
            one.removesuffix(" 0x10") for one in theirs[name]
        ], name
        assert answers[-2].startswith(f"{name}=x") or answers[-3].startswith(f"{name}=x"), name
