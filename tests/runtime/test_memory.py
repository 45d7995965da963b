"""How much memory there is, and that filters do not take more than a half of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hubbub.config.settings import Journal, Settings
from hubbub.core.quotas import SUBSCRIBED
from hubbub.runtime import memory as module
from hubbub.runtime.memory import memory
from hubbub.runtime.node import Node


def test_the_machine_has_some_and_a_group_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 1 << 28 < memory() < 1 << 50
    bound = tmp_path / "memory.max"
    monkeypatch.setattr(module, "GROUPS", (bound, tmp_path / "not-there"))
    machine = memory()
    bound.write_text("max\n")
    assert memory() == machine
    bound.write_text("1000000\n")
    assert memory() == 1_000_000


async def test_filters_take_half_of_it_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(listen=("127.0.0.1:0",), journal=Journal(record="none"))
    for found, most in ((1 << 30, 1 << 29), (1 << 40, 4 << 30)):
        monkeypatch.setattr("hubbub.runtime.node.memory", lambda found=found: found)
        async with Node(settings) as node:
            assert node.broker.quotas.most[SUBSCRIBED] == most
