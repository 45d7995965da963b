"""`hubbub bench`: figures that are right, over MQTT and SMQ, and a table also after Ctrl-C."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.cli.bench import Figures, _sizes, table
from hubbub.errors import SettingError
from tests.process import RunningHub


@given(st.lists(st.floats(1e-6, 100.0), min_size=1, max_size=200))
def test_quantiles_are_right_within_two_hundredths(times: list[float]) -> None:
    figures = Figures()
    for one in times:
        figures.sent += 1
        figures.add(one, 10)
    ordered = sorted(times)
    for part in (0.5, 0.9, 1.0):
        at = max(round(part * len(times) + 0.4999) - 1, 0)
        assert ordered[at] * 0.999 <= figures.quantile(part) <= ordered[at] * 1.021
    bars = list(figures.histogram())
    assert sum(count for _, count in bars) == len(times) and figures.open == 0
    bounds = [bound for bound, _ in bars]
    assert bounds == sorted(set(bounds)) and bounds[-1] >= ordered[-1] * 0.98
    assert "slowest" in table(figures)


def test_nothing_came() -> None:
    assert table(Figures()).startswith("0 sent, 0 received, 0 lost")


def test_sizes() -> None:
    assert _sizes("64") == (64, 64) and _sizes("8-1024") == (8, 1024)
    for wrong in ("x", "7", "64-", "64-8", "-8", "1-2-3", str(1 << 27)):
        with pytest.raises(SettingError, match="--size"):
            _sizes(wrong)


def bench(*options: str) -> list[str]:
    return [sys.executable, "-m", "hubbub", "bench", *options]


@pytest.mark.interop
@pytest.mark.parametrize(
    "scheme, options",
    [
        ("mqtt", ("--qos", "1", "--size", "8-500", "--topics", "3", "--clients", "2")),
        ("smq", ("--rate", "200", "--window", "5")),
    ],
)
def test_over_mqtt_and_smq(hub: RunningHub, scheme: str, options: tuple[str, ...]) -> None:
    command = bench("--url", hub.url(scheme), "--seconds", "0.5", *options)
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    found = re.findall(r"(\d+) (?:sent|received|lost)", said.replace(",", ""))
    sent, received, lost = map(int, found)
    assert sent == received > 0 and lost == 0, said
    assert "latency: half" in said and "#" in said


@pytest.mark.interop
def test_ctrl_c_shows_what_there_is(hub: RunningHub) -> None:
    command = bench("--url", hub.url("mqtt"), "--seconds", "600")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    api = hub.url("http") + "/api/v1/status"
    until = time.monotonic() + 30
    while httpx.get(api, trust_env=False).json()["messages_in"] < 100 and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, complaint = process.communicate(timeout=30)
    assert process.returncode == 0 and complaint == "", complaint
    assert "latency: half" in said
