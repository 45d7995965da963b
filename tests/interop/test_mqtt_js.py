"""MQTT.js, the client of browsers and Node, through every door. What it does is in mqtt_js.mjs."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.interop.doors import SCHEMES, Door, open_door
from tests.process import ROOT, StartHub

pytestmark = pytest.mark.interop
PACKAGE = "mqtt@5.16.0"
SCRIPT = Path(__file__).with_name("mqtt_js.mjs")


@pytest.fixture(scope="module")
def library() -> Path:
    """Where npm has put MQTT.js: build/mqtt-js, filled once."""
    folder = ROOT / "build/mqtt-js"
    if shutil.which("npm") is None:
        pytest.skip("no npm here: apt install npm")
    if not (folder / "node_modules/mqtt").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        command = ("npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), PACKAGE)
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        if done.returncode:
            pytest.skip(f"npm cannot install {PACKAGE}: {done.stderr.strip()[-300:]}")
    return folder


@pytest.fixture(params=SCHEMES)
def door(request: pytest.FixtureRequest, start_hub: StartHub, tmp_path: Path) -> Door:
    return open_door(start_hub, tmp_path, request.param)


def play(library: Path, door: Door, scenario: str) -> dict[str, Any]:
    command = ("node", str(SCRIPT), str(library), door.url, str(door.authority), scenario)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    saw: dict[str, Any] = json.loads(done.stdout)
    return saw


@pytest.mark.parametrize("version", [3, 4, 5])
def test_messages(library: Path, door: Door, version: int) -> None:
    saw = play(library, door, f"messages:{version}")
    assert saw["granted"] == [2, 0]
    assert saw["small"] == [f"{qos} {n} q{qos}" for qos in (0, 1, 2) for n in range(10)]
    assert saw["large"] == [300_000, 0]
    assert (saw["retained"], saw["last"]) == (["kept"], ["last"])


@pytest.mark.parametrize("version", [3, 4, 5])
def test_sessions(library: Path, door: Door, version: int) -> None:
    saw = play(library, door, f"sessions:{version}")
    assert saw["will"] == "gone"
    assert saw["waited"] == ["q1", "q2"]
    assert saw["present"] is True or version == 3, "3.1 has no such flag"


def test_modern(library: Path, door: Door) -> None:
    saw = play(library, door, "modern")
    asked = saw["asked"]
    said = asked.pop("properties")
    assert asked == {"topic": "a/b", "payload": "asked", "qos": 1, "retain": True}
    assert 0 < said.pop("messageExpiryInterval") <= 60
    said.pop("topicAlias", None)
    assert said == {
        "payloadFormatIndicator": True, "contentType": "text/plain", "responseTopic": "answers",
        "correlationData": "42", "userProperties": {"k": ["1", "2"]},
        "subscriptionIdentifier": [7, 9],
    }  # fmt: skip
    assert (saw["again"], saw["others"], saw["reason"]) == ("again", "bob's", 0x8E)
    assert saw["shares"] == [5, 5]
