"""How much memory there is, and that filters do not take more than a half of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hubbub.config.settings import Journal, Settings
from hubbub.core.quotas import SUBSCRIBED
from hubbub.runtime import memory as module
from hubbub.runtime.memory import memory
from hubbub.runtime.node import Node


@pytest.mark.parametrize(
    ("own", "file"),
    [
        ("0::/", "memory.max"),
        ("", "memory.max"),
        ("0::/system.slice/hubbub.service", "system.slice/hubbub.service/memory.max"),
        ("0::/system.slice/hubbub.service", "system.slice/memory.max"),
        ("4:cpu:/x\n5:memory:/y/z\n0::/", "memory/y/z/memory.limit_in_bytes"),
        ("5:memory:/y/z", "memory/memory.limit_in_bytes"),
        ("12:hugetlb,memory:/docker/1:2", "memory/docker/1:2/memory.limit_in_bytes"),
    ],
)
def test_the_machine_has_some_and_a_group_less(
    own: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own group may say so, one around it, or that of the container it is in."""
    assert 1 << 28 < memory() < 1 << 50
    monkeypatch.setattr(module, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(module, "OWN", tmp_path / "own")
    machine = memory()
    (tmp_path / "own").write_text(f"{own}\n")
    bound = tmp_path / "groups" / file
    bound.parent.mkdir(parents=True)
    bound.write_text("max\n")
    assert memory() == machine
    bound.write_text("1000000\n")
    assert memory() == 1_000_000
    bound.with_name("memory.low").write_text("1000")
    assert memory() == 1_000_000


def test_a_group_of_others_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GROUPS", tmp_path)
    monkeypatch.setattr(module, "OWN", tmp_path / "own")
    machine = memory()
    (tmp_path / "own").write_text("4:cpu:/one\n0::/two\n")
    for group in ("one", "memory/one", "two/three", "four"):
        (tmp_path / group).mkdir(parents=True)
        (tmp_path / group / "memory.max").write_text("1000")
        (tmp_path / group / "memory.limit_in_bytes").write_text("1000")
    assert memory() == machine


async def test_filters_take_half_of_it_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(listen=("127.0.0.1:0",), journal=Journal(record="none"))
    for found, most in ((1 << 30, 1 << 29), (1 << 40, 4 << 30)):
        monkeypatch.setattr("hubbub.runtime.node.memory", lambda found=found: found)
        async with Node(settings) as node:
            assert node.broker.quotas.most[SUBSCRIBED] == most
