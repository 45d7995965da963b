"""The same bytes to a real mosquitto and to a hub: what each answers, in words.

A conversation is a list of steps: bytes that are said, after which what comes back is read until
nothing more does. Used by the tests of this folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from hubbub.protocols.mqtt import codec
from tests.ports import free_port
from tests.process import ROOT

WAIT: Final = 20
QUIET: Final = 0.08  # seconds of silence after which the answer is there
FIRST: Final = 1.0  # for the first one: a password takes its time on a busy machine

Conversation = tuple[bytes, ...]


def program() -> str:
    found = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        pytest.skip("no mosquitto here: apt install mosquitto")
    return found


@contextlib.contextmanager
def running(command: list[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A broker that takes connections."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    try:
        until = time.monotonic() + WAIT
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            assert process.poll() is None and time.monotonic() < until, command
            time.sleep(0.05)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(WAIT)


@contextlib.contextmanager
def both(folder: Path, text: str) -> Iterator[tuple[int, int]]:
    """The ports of a hub and of a mosquitto with the same file, in which PORT is theirs."""
    os.chmod(folder, 0o755)
    here, there = free_port(), free_port()
    for name, port in (("here", here), ("there", there)):
        (folder / f"{name}.conf").write_text(text.replace("PORT", str(port)))
    ours = [sys.executable, "-m", "hubbub", "serve", "-c", str(folder / "here.conf")]
    theirs = [program(), "-c", str(folder / "there.conf")]
    with running(ours, here), running(theirs, there):
        yield here, there


def converse(port: int, steps: Conversation) -> list[str]:
    """What was answered, packet by packet, and whether the connection is still open at the end."""
    heard = b""
    closed = False
    with socket.create_connection(("127.0.0.1", port), 5) as sock:
        sock.settimeout(FIRST)
        for step in (*steps, b""):
            with contextlib.suppress(ConnectionError):
                sock.sendall(step)
            while not closed:
                try:
                    piece = sock.recv(1 << 16)
                except TimeoutError:
                    sock.settimeout(QUIET)
                    break
                except ConnectionError:
                    piece = b""
                sock.settimeout(QUIET)
                heard += piece
                closed = not piece
    version = 5 if steps[0][8:9] == b"\x05" else 4
    return [*words(heard, version), "closed" if closed else "open"]


def words(data: bytes, version: int = 4) -> list[str]:
    return [
        word(data[start], data[body:end], version) for start, body, end in codec.packets(data)
    ]


def word(head: int, body: bytes, version: int) -> str:
    kind = head >> 4
    name = codec.NAMES[kind]
    if kind == codec.PUBLISH:
        packet = codec.parse_publish(head, body, version == 5)
        said = f"{packet.topic.decode(errors='replace')}={packet.payload.decode(errors='replace')}"
        said += f" q{packet.qos} #{packet.packet_id}" if packet.qos else ""
        said += " dup" * packet.dup + " retain" * packet.retain
        ids = packet.properties.subscriptions if packet.properties is not None else []
        return said + "".join(f" id={number}" for number in sorted(ids))
    if kind == codec.CONNACK:
        return f"{name} {body[1]:#04x}" + " present" * (body[0] & 1)
    if kind == codec.DISCONNECT:
        return f"{name} {body[0]:#04x}" if body else name
    if kind in (codec.SUBACK, codec.UNSUBACK) and version == 5:
        answer = codec.parse_answer(kind, body)
        return f"{name} {answer.packet_id}: " + " ".join(f"{code:#04x}" for code in answer.codes)
    if kind == codec.SUBACK:
        return f"{name} {body[1]}: " + " ".join(f"{code:#04x}" for code in body[2:])
    if len(body) < 2:
        return name
    code = f" {body[2]:#04x}" if len(body) > 2 and body[2] else ""
    return f"{name} {int.from_bytes(body[:2], 'big')}{code}"
