"""Which requests of browsers are taken: pages of other sites, and names that are not ours."""

from __future__ import annotations

import pytest

from hubbub.wire.site import Site, host_of, is_browser

CHROME = {"user-agent": "Mozilla/5.0 (X11; Linux x86_64) Chrome/131"}
LISTED = "https://app.example"
OURS = {"host": "hub:1"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 0),
        (OURS, 0),
        (OURS | {"origin": "http://hub:1"}, 0),
        (OURS | {"origin": "http://hub:2"}, 403),
        (OURS | {"origin": "http://other:1"}, 403),
        (OURS | {"origin": "null"}, 403),
        ({"origin": "null"}, 403),
        (OURS | {"origin": LISTED}, 0),
        (OURS | {"origin": LISTED, "sec-fetch-site": "cross-site"}, 0),
        (OURS | {"sec-fetch-site": "cross-site"}, 403),
        (OURS | {"sec-fetch-site": "same-site"}, 403),  # another port of localhost
        (OURS | {"sec-fetch-site": "none"}, 0),  # the user typed the address
        (OURS | {"sec-fetch-site": "same-origin"}, 0),
        # A script element says no Origin; a proxy may have made another Host.
        (OURS | {"sec-fetch-site": "cross-site", "referer": LISTED + "/"}, 0),
        (OURS | {"sec-fetch-site": "cross-site", "referer": LISTED + ".evil/"}, 403),
        ({"host": "127.0.0.1:1", "sec-fetch-site": "same-origin", "origin": "https://hub"}, 0),
        # Without TLS a browser says no Sec-Fetch-Site, and for a picture no Origin.
        (OURS | CHROME | {"referer": "http://evil/page"}, 403),
        (OURS | CHROME | {"referer": "http://hub:1/"}, 0),
        (OURS | CHROME, 0),
    ],
)
def test_pages_of_other_sites(headers: dict[str, str], status: int) -> None:
    refusal = Site((LISTED,)).refusal(headers)
    assert (refusal.status if refusal else 0) == status


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        (OURS | CHROME, True),
        (OURS | CHROME | {"referer": "http://hub:1/"}, False),
        (OURS | CHROME | {"sec-fetch-site": "same-origin"}, False),
        (OURS | {"user-agent": "curl/8.5.0"}, False),
        (OURS, False),
    ],
)
def test_a_browser_that_names_no_page_changes_nothing(
    headers: dict[str, str], refused: bool
) -> None:
    assert (Site().refusal(headers, changes=True) is not None) is refused


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ("", True),
        ("127.0.0.1", True),
        ("127.0.0.1:8080", True),
        ("10.1.2.3:80", True),
        ("[::1]:8080", True),
        ("[fe80::1]", True),
        ("localhost", True),
        ("LOCALHOST.:8080", True),
        ("shop.localhost:80", True),
        ("Box:1883", True),
        ("box.local", True),
        ("app.example", True),
        ("hub.lan.", True),
        ("a.example.org", True),
        ("a.b.example.org:443", True),
        ("example.org", False),
        ("notexample.org", False),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("127.0.0.1, evil.example", False),
        ("[::1].evil.example", False),
        ("box.evil", False),
        ("evil@localhost", False),
    ],
)
def test_names_that_are_not_ours(host: str, ours: bool) -> None:
    told: list[str] = []
    site = Site((LISTED,), ("box", "box.local", "hub.lan", ".example.org"), told.append)
    for _ in range(2):
        refusal = site.refusal({"host": host})
        assert (refusal is None) is ours
        assert ours or (refusal is not None and refusal.status == 421 and "hosts" in refusal.text)
    assert told == ([] if ours else [host, host])
    assert Site().refusal({"host": host}) is None


def test_a_listed_page_may_not_use_another_name_either() -> None:
    refusal = Site((LISTED,), ()).refusal({"host": "evil.example", "origin": LISTED})
    assert refusal is not None and refusal.status == 421


def test_known_hosts_are_bounded() -> None:
    site = Site((), ())
    for port in range(1_000):
        assert site.refusal({"host": f"127.0.0.1:{port}"}) is None
    assert len(site._known) <= 100


def test_a_refusal_is_plain_text_whatever_was_said() -> None:
    refusal = Site().refusal({"host": "h", "origin": "<script>alert(1)</script>"})
    assert refusal is not None
    head = refusal.response().partition(b"\r\n\r\n")[0].lower()
    assert b"content-type: text/plain" in head and b"x-content-type-options: nosniff" in head


def test_who_is_a_browser() -> None:
    assert is_browser(CHROME) and is_browser({"origin": "null"})
    assert is_browser({"sec-fetch-site": "none"})
    assert not is_browser({"user-agent": "curl/8.5.0"}) and not is_browser({})


def test_the_host_of_a_place() -> None:
    assert host_of("https://App.Example:8443") == "app.example"
    assert host_of("[::1]:80") == "::1"
