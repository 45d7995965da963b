"""The clients of Python on the loop of others: web servers bring uvloop, whose transports do not
inherit asyncio's.
"""

from __future__ import annotations

import asyncio

import pytest

from hubbub import Hub, connect
from hubbub.runtime.loop import new_event_loop


@pytest.mark.parametrize("scheme", ["switch", "smq", "mqtt"])
def test_a_client_runs_on_uvloop(scheme: str) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(10), Hub(listen="127.0.0.1:0") as hub,
            connect(f"{scheme}://{hub.addresses[0]}"),
        ):  # fmt: skip
            assert len(hub.peers()) == 2

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
