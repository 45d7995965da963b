"""A real haproxy before the hub: both versions of its PROXY protocol, its checks, TLS."""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
from pathlib import Path

import pytest

from hubbub.config.identity import Tls
from tests.auth.test_every_door import connect, request
from tests.certificates import Authority
from tests.ports import free_port
from tests.runtime.test_proxies import IN, addresses, hub

pytestmark = pytest.mark.interop

CONFIG = """
defaults
  mode tcp
  timeout connect 5s
  timeout client 30s
  timeout server 30s
frontend all
  bind 127.0.0.1:{front}
  default_backend hubs
backend hubs
  source 127.0.0.2
  server one 127.0.0.1:{back} {how} check inter 200
"""


@pytest.mark.parametrize(
    "how", ["send-proxy", "send-proxy-v2", "send-proxy-v2 proxy-v2-options unique-id"]
)
async def test_the_hub_knows_who_is_behind_haproxy(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
    if program is None:
        pytest.skip("no haproxy here")
    caplog.set_level(logging.INFO)
    authority = Authority(tmp_path)
    front = free_port()
    tls = Tls(certificate=str(authority.sign("localhost", server=True)))
    async with hub("127.0.0.2", tls=tls) as node:
        config = tmp_path / "haproxy.cfg"
        back = node.listeners[0].address.port
        config.write_text(CONFIG.format(front=front, back=back, how=how))
        haproxy = subprocess.Popen([program, "-f", str(config), "-db"])
        try:
            reader, writer = await patiently(front, "127.0.0.3")
            writer.write(connect())
            assert await asyncio.wait_for(reader.readexactly(4), 10) == IN
            assert addresses(node) == ["127.0.0.3"]
            secure, out = await asyncio.open_connection(
                "127.0.0.1", front, ssl=authority.client(), server_hostname="localhost",
                local_addr=("127.0.0.4", 0),
            )  # fmt: skip
            out.write(connect(client=b"d"))
            assert await asyncio.wait_for(secure.readexactly(4), 10) == IN
            assert addresses(node) == ["127.0.0.3", "127.0.0.4"]
            web, out = await patiently(front, "127.0.0.5")
            out.write(request(b"/hubbub.js"))
            assert (await asyncio.wait_for(web.readline(), 10)).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(1)  # some checks
        finally:
            haproxy.terminate()
            haproxy.wait(10)
    assert "PROXY header" not in caplog.text, "checks are no trouble"
    assert "reset by peer" not in caplog.text


async def patiently(port: int, source: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """It takes a moment to listen."""
    for _ in range(50):
        try:
            return await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
        except ConnectionRefusedError:
            await asyncio.sleep(0.1)
    raise TimeoutError("haproxy does not listen")
