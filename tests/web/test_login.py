"""Logged in by the page: the cookie, the word beside it, and when it is over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from hubbub.auth.guesses import OF_USER
from hubbub.auth.passwords import add_user
from hubbub.config.settings import Api, Journal, Settings
from hubbub.core.gate import Admission, Gate, Opening
from hubbub.core.limits import PAGE_IDLE_SECONDS, PAGE_SECONDS, PAGE_SESSIONS, SHARE
from hubbub.core.rights import Rights
from hubbub.runtime.node import Node
from hubbub.web.app import Application
from hubbub.web.login import Visits, cookie_name
from tests.core.recording import StillClock

STATUS = "/api/v1/status"
PUBLISH = "/api/v1/publish"
LINE = b'{"topic": "a/b", "payload": "x"}'
HTML = {"accept": "text/html"}


class Browser:
    """What keeps cookies, as browsers do, and says from which page it asks."""

    def __init__(self, node: Node, client: httpx.AsyncClient) -> None:
        self.node = node
        self.http = client

    async def login(self, **given: str) -> httpx.Response:
        return await self.http.post("/admin/login", json=given)

    async def publish(self, word: str | None = None) -> int:
        headers = {} if word is None else {"hubbub-csrf": word}
        return (await self.http.post(PUBLISH, content=LINE, headers=headers)).status_code


Serve = Callable[..., AbstractAsyncContextManager[Browser]]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    @asynccontextmanager
    async def start(**settings: Any) -> AsyncIterator[Browser]:
        settings.setdefault("journal", Journal(record="none"))
        node = Node(Settings(data=str(tmp_path / "data"), listen=("127.0.0.1:0",), **settings))
        node.web = Application(node)
        async with node:
            url = f"http://{node.listeners[0].address}"
            headers = {"sec-fetch-site": "same-origin"}
            async with httpx.AsyncClient(
                timeout=30, base_url=url, trust_env=False, headers=headers
            ) as client:
                yield Browser(node, client)

    return start


@pytest.fixture
def users(tmp_path: Path) -> str:
    file = tmp_path / "users"
    add_user(file, "ann", b"secret")
    add_user(file, "eve", b"nosy")
    return str(file)


@pytest.fixture
def rules(tmp_path: Path) -> str:
    file = tmp_path / "rules"
    file.write_text("user ann\ntopic readwrite #\ntopic read $SYS/#\nuser eve\ntopic read a/b\n")
    return str(file)


async def test_the_page_is_for_everybody_and_what_it_shows_is_not(
    serve: Serve, users: str
) -> None:
    async with serve(password_file=users) as browser:
        page = await browser.http.get("/", headers=HTML)
        assert page.status_code == 200
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert (await browser.http.get("/admin/nothing.js")).status_code == 404
        assert (await browser.http.get("/admin/../app.py")).status_code in (401, 404)
        assert (await browser.http.get(STATUS)).status_code == 401
        asked = await browser.http.get(STATUS, headers={"hubbub-csrf": ""})
        assert asked.status_code == 401
        assert not asked.headers["www-authenticate"].lower().startswith("basic"), (
            "a browser would ask for a password over the page's own form"
        )


async def test_a_cookie_lets_in_and_the_word_lets_change(serve: Serve, users: str) -> None:
    async with serve(password_file=users) as browser:
        assert (await browser.http.get("/admin/session")).json() == {"wants": "password"}
        answer = await browser.login(user="ann", password="secret")
        said = answer.headers["set-cookie"].lower()
        assert "httponly" in said and "samesite=strict" in said and "path=/" in said
        assert "secret" not in said and answer.json()["user"] == "ann"
        word = answer.json()["csrf"]
        assert (await browser.http.get(STATUS)).status_code == 200
        assert (await browser.http.get("/admin/session")).json()["csrf"] == word
        assert [await browser.publish(one) for one in (None, "", "wrong", word)] == [
            403, 403, 403, 200,
        ]  # fmt: skip
        basic = httpx.BasicAuth("ann", "secret")
        async with httpx.AsyncClient(trust_env=False, auth=basic) as script:
            url = f"{browser.http.base_url}".rstrip("/") + PUBLISH
            assert (await script.post(url, content=LINE)).status_code == 200, "scripts need none"


async def test_logging_out_needs_the_word_and_ends_the_cookie(serve: Serve, users: str) -> None:
    async with serve(password_file=users) as browser:
        word = (await browser.login(user="ann", password="secret")).json()["csrf"]
        kept = dict(browser.http.cookies)
        assert (await browser.http.post("/admin/logout")).status_code == 403
        assert (await browser.http.get(STATUS)).status_code == 200
        out = await browser.http.post("/admin/logout", headers={"hubbub-csrf": word})
        assert out.status_code == 200 and not dict(browser.http.cookies)
        browser.http.cookies.update(kept)
        assert (await browser.http.get(STATUS)).status_code == 401


async def test_wrong_logins_are_slowed_down_as_at_every_door(serve: Serve, users: str) -> None:
    async with serve(password_file=users) as browser:
        tries = int(OF_USER) + 3
        for _ in range(tries):
            answer = await browser.login(user="ann", password="guess")
            assert answer.status_code == 401 and "set-cookie" not in answer.headers
        assert "too many" in answer.json()["detail"]
        right = await browser.login(user="ann", password="secret")
        assert right.status_code == 401, "not even looked at"
        refusals = browser.node.broker.audit.refusals
        assert refusals.logins == tries + 1 and len(refusals.last("ann", None)) == tries + 1


async def test_rights_are_those_of_who_logged_in(serve: Serve, users: str, rules: str) -> None:
    async with serve(password_file=users, acl_file=rules) as browser:
        word = (await browser.login(user="eve", password="nosy")).json()["csrf"]
        answer = await browser.http.get(STATUS)
        assert answer.status_code == 403 and "$SYS/#" in answer.json()["detail"]
        assert answer.headers["content-type"] == "application/problem+json"
        assert await browser.publish(word) == 403
        word = (await browser.login(user="ann", password="secret")).json()["csrf"]
        assert (await browser.http.get(STATUS)).status_code == 200
        assert await browser.publish(word) == 200


async def test_it_is_over_when_the_password_is_another(
    serve: Serve, users: str, tmp_path: Path
) -> None:
    async with serve(password_file=users) as browser:
        await browser.login(user="ann", password="secret")
        assert (await browser.http.get(STATUS)).status_code == 200
        add_user(Path(users), "ann", b"other")
        browser.node.read_credentials()
        assert (await browser.http.get(STATUS)).status_code == 401


async def test_where_nobody_logs_in_a_session_is_there_at_once(serve: Serve) -> None:
    async with serve() as browser:
        assert (await browser.http.get("/admin/session")).json() == {"wants": "nothing"}
        word = (await browser.login()).json()["csrf"]
        assert (await browser.http.get(STATUS)).status_code == 200
        assert await browser.publish(word) == 200
        assert await browser.publish("wrong") == 403, "as soon as there is a cookie"


async def test_the_token_of_the_api_stays_the_only_key_to_it(serve: Serve) -> None:
    async with serve(api=Api(token="sesame")) as browser:
        assert (await browser.http.get("/admin/session")).json() == {"wants": "token"}
        for given in ({}, {"token": "sesam"}, {"user": "ann", "password": "sesame"}):
            assert (await browser.login(**given)).status_code == 401
        assert (await browser.http.get(STATUS)).status_code == 401
        word = (await browser.login(token="sesame")).json()["csrf"]
        assert (await browser.http.get(STATUS)).status_code == 200
        assert await browser.publish(word) == 200
        browser.node.web._token = b"other"  # type: ignore[union-attr]
        assert (await browser.http.get(STATUS)).status_code == 401


async def test_guesses_of_the_token_are_slowed_down(serve: Serve) -> None:
    async with serve(api=Api(token="sesame")) as browser:
        right, wrong = ({"authorization": f"Bearer {one}"} for one in ("sesame", "guess"))
        for _ in range(int(OF_USER) + 3):
            assert (await browser.http.get(STATUS)).status_code == 401, "which is no guess"
        assert (await browser.http.get(STATUS, headers=right)).status_code == 200
        for _ in range(int(OF_USER) + 3):
            answer = await browser.login(token="guess")
            assert answer.status_code == 401
        assert "too many" in answer.json()["detail"]
        assert (await browser.login(token="sesame")).status_code == 401, "not even looked at"
        transport = httpx.AsyncHTTPTransport(local_address="127.0.0.9")
        url = browser.http.base_url
        async with httpx.AsyncClient(base_url=url, transport=transport) as other:
            for _ in range(int(OF_USER) + 3):
                assert (await other.get(STATUS, headers=wrong)).status_code == 401
            answer = await other.get(STATUS, headers=right)
            assert answer.status_code == 401 and "too many" in answer.json()["detail"]
        answer = await browser.http.get(STATUS, headers=right)
        assert answer.status_code == 200, "who said it before goes on"


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"content-type": "text/plain"}, b"{}", 415),
        ({"content-type": "application/json"}, b"{", 400),
        ({"content-type": "application/json"}, b'{"user": "' + b"x" * 70_000 + b'"}', 400),
        ({"content-type": "application/json", "sec-fetch-site": "cross-site"}, b"{}", 403),
    ],
)
async def test_what_is_no_login(
    serve: Serve, headers: dict[str, str], body: bytes, status: int
) -> None:
    async with serve() as browser:
        answer = await browser.http.post("/admin/login", content=body, headers=headers)
        assert answer.status_code == status and "set-cookie" not in answer.headers


# The sessions themselves


def admission(opening: Opening, whose: str = "user 'ann'") -> Admission:
    found = Admission("", "", "ann", opening.gate.rights, opening)
    found.owner = whose
    return found


def test_sessions_end_when_nobody_asks_and_once_a_week() -> None:
    clock, opening = StillClock(), Opening(Gate(Rights()), "10.0.0.1")
    visits = Visits(clock)
    cookie, _ = visits.begin(admission(opening), opening, b"")
    for _ in range(3):
        clock.seconds += PAGE_IDLE_SECONDS - 1
        assert visits.find(cookie, opening, b"")
    clock.seconds += PAGE_IDLE_SECONDS + 1
    assert visits.find(cookie, opening, b"") is None and len(visits) == 0
    cookie, _ = visits.begin(admission(opening), opening, b"")
    until = clock.seconds + PAGE_SECONDS
    while clock.seconds + PAGE_IDLE_SECONDS < until:
        clock.seconds += PAGE_IDLE_SECONDS
        assert visits.find(cookie, opening, b"")
    clock.seconds = until + 1
    assert visits.find(cookie, opening, b"") is None


def test_a_session_of_one_listener_is_none_of_another() -> None:
    clock, opening = StillClock(), Opening(Gate(Rights()), "10.0.0.1")
    visits = Visits(clock)
    cookie, _ = visits.begin(admission(opening), opening, b"")
    assert visits.find(cookie, Opening(Gate(Rights()), "10.0.0.1"), b"") is None
    assert visits.find(cookie, opening, b"")


def test_sessions_are_bounded_and_one_user_has_a_part() -> None:
    clock, opening = StillClock(), Opening(Gate(Rights()), "10.0.0.1")
    visits = Visits(clock)
    cookies = [visits.begin(admission(opening), opening, b"")[0] for _ in range(PAGE_SESSIONS)]
    assert len(visits) == PAGE_SESSIONS // SHARE
    assert visits.find(cookies[0], opening, b"") is None, "the one that was away longest"
    assert visits.find(cookies[-1], opening, b"")
    for number in range(2 * PAGE_SESSIONS):
        visits.begin(admission(opening, f"user {number}"), opening, b"")
    assert len(visits) == PAGE_SESSIONS


async def test_who_has_no_name_ends_no_session_of_who_has_one(serve: Serve, users: str) -> None:
    async with serve(password_file=users, allow_anonymous=True) as browser:
        assert (await browser.login(user="ann", password="secret")).status_code == 200
        visits = browser.node.web._visits  # type: ignore[union-attr]
        [known] = visits._known.values()
        opening = known.admission.opening
        nobody = Admission("", "", "", opening.gate.rights, opening)
        for number in range(2 * PAGE_SESSIONS):
            nobody.owner = f"address {number // 100}"
            visits.begin(nobody, opening, b"")
        assert len(visits) == PAGE_SESSIONS
        assert (await browser.http.get("/admin/session")).json()["user"] == "ann"


def test_two_hubs_of_one_host_have_two_cookies() -> None:
    assert cookie_name("box:8080", False) != cookie_name("box:1883", False)
    assert cookie_name("box", True).startswith("__Host-"), "which no other host can set"
