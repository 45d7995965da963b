"""Until when a certificate is good, beside what the library of the tests says of it."""

from __future__ import annotations

import base64
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from hubbub.auth.validity import LISTS, Validity, authorities, validity
from tests.certificates import Authority

NOW = datetime(2026, 11, 28, tzinfo=UTC)
DAY = timedelta(days=1)


def test_the_dates_are_those_of_the_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    file = authority.sign("hub")
    found = validity(str(file))
    known = x509.load_pem_x509_certificate(file.read_bytes())
    assert found == Validity(known.not_valid_before_utc, known.not_valid_after_utc)


def test_of_a_chain_the_one_that_ends_first_counts(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    short, long = authority.sign("a", hours=5), authority.file
    chain = tmp_path / "chain.pem"
    chain.write_bytes(long.read_bytes() + short.read_bytes())
    found, alone = validity(str(chain)), validity(str(short))
    assert found is not None and alone is not None and found.ends == alone.ends


@pytest.mark.parametrize("hours", [24, -2])
def test_a_list_of_revoked_ones_is_good_until_the_next_one(tmp_path: Path, hours: int) -> None:
    authority = Authority(tmp_path)
    file = authority.revoke(authority.sign("bob"), hours=hours)
    known = x509.load_pem_x509_crl(file.read_bytes())
    found = validity(str(file))
    assert found is not None and found.means is LISTS
    assert (found.begins, found.ends) == (known.last_update_utc, known.next_update_utc)
    said = found.complaint(datetime.now(UTC))
    assert ("fetch the new list" in said) == (hours < 0)


def test_years_of_four_digits(tmp_path: Path) -> None:
    """From 2050 on dates are written in another way (RFC 5280, 4.1.2.5)."""
    file = Authority(tmp_path).sign("hub", hours=24 * 365 * 40)
    found = validity(str(file))
    assert found is not None and found.ends.year > 2050 > found.begins.year


@given(st.binary(max_size=200))
def test_what_is_no_certificate_has_no_dates(body: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        begin, end = b"-----BEGIN CERTIFICATE-----\n", b"\n-----END CERTIFICATE-----\n"
        Path(file.name).write_bytes(begin + base64.encodebytes(body).strip() + end)
        assert validity(file.name) is None


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert validity(str(tmp_path / "none")) is None


@pytest.mark.parametrize("begins, ends, said", [
    (-80 * DAY, 20 * DAY, ""),
    (-80 * DAY, 10 * DAY, "is over in 10 days, at 2026-12-08 00:00:00+00:00"),
    (-80 * DAY, DAY, "is over in 24 hours"),
    (-2 * DAY, 5 * DAY, ""),  # made for a week
    (-6 * DAY, DAY, "is over in 24 hours"),
    (-80 * DAY, -DAY, "is over since 2026-11-27 00:00:00+00:00: clients refuse it"),
    (-80 * DAY, 0 * DAY, "is over since"),
    (DAY, 9 * DAY, "is not good before 2026-11-29"),
])  # fmt: skip
def test_what_is_said_of_it(begins: timedelta, ends: timedelta, said: str) -> None:
    found = Validity(NOW + begins, NOW + ends).complaint(NOW)
    assert found.startswith(said) and bool(found) == bool(said)


def test_a_file_of_beginnings_costs_no_more_than_its_length(tmp_path: Path) -> None:
    """Each looked for its end in all the rest: 4,000 took three seconds, 50,000 some minutes."""
    file = Authority(tmp_path).sign("hub")
    file.write_bytes(file.read_bytes() + b"-----BEGIN CERTIFICATE-----\n" * 4_000)
    began = time.process_time()
    assert validity(str(file)) is not None
    assert time.process_time() - began < 1


def test_authorities_are_looked_at_one_by_one(tmp_path: Path) -> None:
    """In a directory those that OpenSSL finds there; what is no certificate is none of them."""
    first, second = Authority(tmp_path / "a"), Authority(tmp_path / "b", hours=-2)
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(first.file.read_bytes() + second.revoke().read_bytes()
                       + second.file.read_bytes())  # fmt: skip
    found = authorities(str(bundle))
    places = [f"'{bundle}' ({number} of 3 in it)" for number in (1, 3)]
    assert [place for place, _ in found] == places
    assert [bool(one.complaint(datetime.now(UTC))) for _, one in found] == [False, True]
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("0a1b2c3d.0", "0a1b2c3d.1", "0a1b2c3d.r0", "copy.pem"):
        (folder / name).write_bytes(second.file.read_bytes())
    (folder / "ffffffff.0").write_text("nothing")
    (folder / "eeeeeeee.0").symlink_to("gone")
    named = [f"'{folder}/0a1b2c3d.{number}'" for number in (0, 1)]
    assert [place for place, _ in authorities(str(folder))] == named
    assert authorities(str(tmp_path / "none")) == []
