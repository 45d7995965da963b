"""A certificate that ends: the log, the status and the metrics say so while there is time."""

from __future__ import annotations

import asyncio
import logging
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hubbub.auth.validity import authorities, validity
from hubbub.config.settings import Journal, Listener, Settings, Tls
from hubbub.errors import SettingError
from hubbub.runtime.listener import AUTHORITIES_SAID, DAY
from hubbub.runtime.node import Node
from hubbub.web import prometheus
from tests.certificates import Authority

WEEK = 24 * 7


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@asynccontextmanager
async def serving(*certificates: Path, key: str = "") -> AsyncIterator[Node]:
    listeners = tuple(
        Listener(address="127.0.0.1:0", tls=Tls(certificate=str(one), key=key))
        for one in certificates
    )
    memory = Journal(record="none")
    async with Node(Settings(listen=(), listener=listeners, journal=memory)) as hub:
        yield hub


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    caplog.clear()
    return [one for one in said if "tls.certificate" in one]


async def test_one_that_is_over_is_said_at_the_start_each_day_and_with_each_reload(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The hub took it without a word, and no client came in any more."""
    file = tmp_path / "hub.pem"
    shutil.copy(authority.sign("over", server=True, hours=-2), file)
    async with serving(file) as hub:
        (line,) = told(caplog)
        assert f"tls.certificate = '{file}' is over since 20" in line
        now = hub.clock.now()
        hub.listeners[0].sweep(now + 1)
        assert not told(caplog)
        hub.listeners[0].sweep(now + DAY + 1)
        hub.listeners[0].sweep(now + DAY + 2)
        assert len(told(caplog)) == 1
        hub.read_credentials()
        assert len(told(caplog)) == 1
        shutil.copy(authority.sign("good", server=True, hours=WEEK), file)
        hub.read_credentials()
        hub.listeners[0].sweep(now + 5 * DAY)
        assert not told(caplog)


async def test_a_revocation_list_that_is_over_refuses_all_clients_and_is_said(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    crl = authority.revoke(authority.sign("bob"), hours=-2)
    tls = Tls(
        certificate=str(authority.sign("hub", server=True)), client_ca=str(authority.file),
        crl=str(crl), require_certificate=True,
    )  # fmt: skip
    listener = Listener(address="127.0.0.1:0", tls=tls)
    settings = Settings(listen=(), listener=(listener,), journal=Journal(record="none"))
    async with Node(settings):
        (line,) = (one for one in map(logging.LogRecord.getMessage, caplog.records) if "crl" in one)
    assert f"tls.crl = '{crl}' is over since 20" in line and "is refused; fetch" in line


async def test_until_when_it_is_good_is_a_metric(authority: Authority) -> None:
    good, over = (authority.sign(f"of {hours}", server=True, hours=hours) for hours in (WEEK, -2))
    async with serving(good, over) as hub:
        first, second = (listener.validity for listener in hub.listeners)
        page = prometheus.page(await hub.metrics()).decode()
        status = await hub.status()
        addresses = [str(one.address) for one in hub.listeners]
    assert first is not None and second is not None and second.ends < first.ends
    for address, one in zip(addresses, (first, second), strict=True):
        (line,) = (line for line in page.splitlines() if f'listener="{address}"' in line)
        assert line.startswith("hubbub_certificate_expires_seconds{")
        assert float(line.split()[-1]) == one.ends.timestamp()
    assert [one["file"] for one in status["certificates"]] == [str(good), str(over)]


async def test_a_renewal_of_which_half_is_there(authority: Authority, tmp_path: Path) -> None:
    """OpenSSL names neither file; two listeners said it twice."""
    one, other = authority.sign("one", server=True), authority.sign("other", server=True)
    key = tmp_path / "key.pem"
    shutil.copy(one, key)
    async with serving(one, one, key=str(key)) as hub:
        shutil.copy(other, key)
        with pytest.raises(SettingError) as error:
            hub.read_credentials()
    said = str(error.value)
    assert f"the key in '{key}' is not that of this certificate" in said
    assert said.count("is not that of this certificate") == 1


async def test_authorities_of_clients_that_end_are_said_and_are_a_metric(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With one that is over nobody whose certificate is of it came in, and nothing said so."""
    old = Authority(tmp_path / "old", "Old authority", hours=-2)
    both, crl = tmp_path / "both.pem", authority.revoke()
    both.write_bytes(old.file.read_bytes() + authority.file.read_bytes())
    tls = Tls(
        certificate=str(authority.sign("hub", server=True)), client_ca=str(both), crl=str(crl),
        require_certificate=True,
    )  # fmt: skip
    listener = Listener(address="127.0.0.1:0", tls=tls)
    settings = Settings(listen=(), listener=(listener,), journal=Journal(record="none"))
    async with Node(settings) as hub:
        said = [one.getMessage() for one in caplog.records if "client_ca" in one.getMessage()]
        page = prometheus.page(await hub.metrics()).decode()
        status = await hub.status()
        address = hub.listeners[0].address
        context = authority.client(old.sign("device"))
        with pytest.raises((ssl.SSLError, ConnectionError)):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", address.port, ssl=context, server_hostname="localhost"
            )
            writer.write(b"x")
            assert await asyncio.wait_for(reader.read(), 10) == b""
            raise ConnectionError
    assert len(said) == 1 and f"tls.client_ca = '{both}' (1 of 2 in it) is over since 20" in said[0]
    first = authorities(str(old.file))[0][1].ends.timestamp()
    lists = validity(str(crl))
    assert lists is not None
    for name, ends in (("client_ca", first), ("crl", lists.ends.timestamp())):
        wanted = f'hubbub_{name}_expires_seconds{{listener="{address}"}}'
        (line,) = (line for line in page.splitlines() if line.startswith(wanted))
        assert float(line.split()[-1]) == ends
    assert status["authorities"][0]["file"] == str(both)
    assert status["revocation_lists"][0]["file"] == str(crl)


async def test_a_systems_whole_list_of_authorities_is_said_in_few_lines(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, many = Authority(tmp_path / "old", hours=-2), tmp_path / "many.pem"
    many.write_bytes(old.file.read_bytes() * 500)
    tls = Tls(certificate=str(authority.sign("hub", server=True)), client_ca=str(many))
    listener = Listener(address="127.0.0.1:0", tls=tls)
    settings = Settings(listen=(), listener=(listener,), journal=Journal(record="none"))
    async with Node(settings):
        said = [one.getMessage() for one in caplog.records if "client_ca" in one.getMessage()]
    assert len(said) == AUTHORITIES_SAID + 1 and "495 more are over" in said[-1]
