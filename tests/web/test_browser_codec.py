"""The bytes of `hubbub.js` are those of the hub's own codec. Runs the module in Node, once."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from typing import Any, Final

import pytest

from hubbub.protocols.smq import codec
from tests.process import ROOT

SCRIPT: Final = ROOT / "src/hubbub/web/static/hubbub.js"
NODE: Final = shutil.which("node")
RAW_ONLY: Final = {codec.PUBFRAG}  # not in the JavaScript client

pytestmark = pytest.mark.skipif(NODE is None, reason="needs Node (Debian: apt install nodejs)")

# Loaded by its text, so that Node takes it for a module whatever its version.
PROGRAM: Final = """
    const { readFileSync } = await import("node:fs");
    const { source, packs, unpacks, connects } = JSON.parse(readFileSync(0, "utf-8"));
    const hub = await import("data:text/javascript," + encodeURIComponent(source));
    const bytes = (hex) => new Uint8Array(Buffer.from(hex, "hex"));
    const hex = (bytes) => Buffer.from(bytes).toString("hex");
    console.log(JSON.stringify({
        packed: packs.map(([kind, numbers, rest]) => hex(hub.pack(kind, numbers, bytes(rest)))),
        unpacked: unpacks.map((message) => {
            const found = hub.unpack(bytes(message).buffer);
            return found ? [found.kind, found.numbers, hex(found.rest)] : null;
        }),
        bodies: connects.map((parts) => hex(hub.connectBody(...parts.map(bytes)))),
    }));
"""


def in_node(**cases: Any) -> Any:
    assert NODE is not None
    done = subprocess.run(
        [NODE, "--input-type=module", "--eval", PROGRAM],
        input=json.dumps({"packs": [], "unpacks": [], "connects": [], **cases}),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def messages() -> list[tuple[str, list[int], bytes]]:
    """Every kind with small and large numbers, and with text, bytes and nothing behind them."""
    values = {"B": (0, 1, 255), "I": (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)}
    rests = (b"", "grüß".encode(), bytes(range(256)))
    found = []
    for kind, layout in codec.LAYOUTS.items():
        choices = [values[field] for field in layout.numbers.format.lstrip(">")]
        for numbers, rest in itertools.product(itertools.product(*choices), rests):
            if kind not in RAW_ONLY:
                found.append((layout.name, list(numbers), rest))
    return found


KIND: Final = {layout.name: kind for kind, layout in codec.LAYOUTS.items()}


def test_both_make_the_same_bytes_of_every_message_and_read_them_back() -> None:
    cases = messages()
    ours = [codec.message(KIND[name], *numbers, rest=rest).hex() for name, numbers, rest in cases]
    spelled = [[name, numbers, rest.hex()] for name, numbers, rest in cases]
    found = in_node(source=SCRIPT.read_text("utf-8"), packs=spelled, unpacks=ours)
    assert found["packed"] == ours
    assert found["unpacked"] == spelled


def test_the_body_of_a_connect() -> None:
    cases = [(b"page-1", b"", b""), (b"\x02\xfc\x00\x00\x00\x01", b"ann:secret", b"info")]
    cases.append((bytes(255), bytes(255), bytes(1000)))
    found = in_node(
        source=SCRIPT.read_text("utf-8"), connects=[[part.hex() for part in case] for case in cases]
    )
    assert found["bodies"] == [codec.build_connect(*case)[2:].hex() for case in cases]


def test_what_is_too_short_or_of_no_known_type_is_no_message() -> None:
    short = [
        codec.message(kind, *(0,) * (len(layout.numbers.format) - 1))[:size].hex()
        for kind, layout in codec.LAYOUTS.items()
        for size in range(layout.numbers.size + 1)
        if layout.numbers.size and kind not in RAW_ONLY
    ]
    unknown = [bytes((kind,)).hex() for kind in range(256) if kind not in codec.LAYOUTS]
    cases = [*short, *unknown, ""]
    found = in_node(source=SCRIPT.read_text("utf-8"), unpacks=cases)
    assert found["unpacked"] == [None] * len(cases)
