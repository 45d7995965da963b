"""A hub with its web application, for the tests that need nothing else of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hubbub import Hub
from hubbub.web.app import Application


@pytest.fixture
async def web_hub(tmp_path: Path) -> AsyncIterator[Hub]:
    hub = Hub(listen="127.0.0.1:0", data=tmp_path / "data")
    hub.node.web = Application(hub.node)
    async with hub:
        yield hub
