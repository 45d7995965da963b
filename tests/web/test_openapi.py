"""The description of the API is of its routes, and what it says of them holds.

`schemathesis run http://HOST:PORT/api/v1/openapi.json --exclude-path /api/v1/tail` asks much more,
by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from hubbub import connect
from hubbub.web import guarded, openapi
from hubbub.web.listing import KINDS
from hubbub.web.openapi import OPERATIONS
from tests.process import RunningHub

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def api(hub: RunningHub) -> Any:
    async with connect(hub.url("mqtt")) as client:
        await client.publish("a", b"x", 1, True)
        await client.publish("$queue/a", b"x", 1)
    async with httpx.AsyncClient(base_url=hub.url("http"), trust_env=False, timeout=30) as web:
        yield web


async def test_each_route_is_described_and_nothing_else(api: httpx.AsyncClient) -> None:
    said = (await api.get(openapi.PATH)).json()
    found = {f"{method.upper()} {path}" for path, item in said["paths"].items() for method in item}
    assert found == set(OPERATIONS) and said["openapi"] == "3.1.0"
    page = (ROOT / "docs/reference/http-api.md").read_text("utf-8")
    for path in said["paths"]:
        assert path.partition("{")[0] in page, f"{path} is not in docs/reference/http-api.md"
    for reference in re.findall(r"#/components/schemas/(\w+)", repr(said)):
        assert reference in said["components"]["schemas"]
    names = [one["operationId"] for item in said["paths"].values() for one in item.values()]
    assert len(names) == len(set(names))
    [kind] = [one for one in said["paths"]["/api/v1/ls/{kind}"]["get"]["parameters"][:1]]
    assert kind["schema"]["enum"] == list(KINDS)


def values(schema: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """What a parameter may be at its edges, and what it may not."""
    if "enum" in schema:
        yield from ((one, True) for one in schema["enum"])
        yield "nothing", False
    elif schema["type"] == "integer":
        yield from ((str(schema[edge]), True) for edge in ("minimum", "maximum"))
        yield from ((str(one), False) for one in (schema["maximum"] + 1, -1, "x", "1.5", ""))
    elif schema.get("pattern", "").endswith("d]$"):
        yield from (("1h", True), ("90s", True), ("", False), ("1y", False))
    else:
        yield "a", True
        yield from [("a/#b", False)] if "pattern" in schema else []


def fitting(parameter: dict[str, Any]) -> str:
    return "1" if parameter["schema"].get("type") == "integer" else "a"


async def test_what_is_described_holds_at_its_edges(api: httpx.AsyncClient) -> None:
    said = (await api.get(openapi.PATH)).json()
    del said["paths"]["/api/v1/tail"]  # which has no end
    for path, item in said["paths"].items():
        operation = item.get("get")
        for one in operation["parameters"] if operation else ():
            for value, valid in values(one["schema"]):
                others = {p["name"]: fitting(p) for p in operation["parameters"] if p["required"]}
                given = others | ({"kind": "topics"} if "kind" in others else {})
                if one["name"] in ("to", "most") and path == guarded.JOURNAL:
                    given["from"] = "1"  # which they say the end of
                given[one["name"]] = value
                inside = re.search(r"\{(\w+)\}", path)
                where = path.format(**{name: quote(one) for name, one in given.items()})
                given.pop(inside[1] if inside else "", None)
                answer = await api.get(where, params=given)
                assert str(answer.status_code) in operation["responses"], (where, given)
                assert answer.is_success == valid, (where, given, answer.text[:200])
                kinds = operation["responses"][str(answer.status_code)]["content"]
                assert answer.headers["content-type"].partition(";")[0] in kinds, (where, given)


async def test_what_a_line_may_be_is_described(api: httpx.AsyncClient) -> None:
    """What the hub refuses of a line, the schema refuses too."""
    line = (await api.get(openapi.PATH)).json()["components"]["schemas"]["Line"]
    assert line["additionalProperties"] is False
    nul = "a" + chr(0)
    for name, wrong, right in (
        ("topic", "a/#", "a b"), ("topic", nul, "$queue/x"), ("topic", "a\r\n", "\u00e9"),
        ("base64", "%", "AAEC"), ("correlation", "AAE", "AAE="), ("reply_to", "+", "b"),
        ("reply_to", "\x9b", ""), ("subtopic", nul, "c"), ("content_type", nul, "\x1b"),
    ):  # fmt: skip
        for value, valid in ((wrong, False), (right, True)):
            answer = await api.post("/api/v1/publish", json={"topic": "t", name: value})
            assert answer.is_success == valid, (name, value, answer.text)
            fits = re.search(line["properties"][name]["pattern"], value) is not None
            assert fits == valid, (name, value)
    assert (await api.post("/api/v1/publish", json={"topic": "t", "more": 1})).status_code == 400
    qos = line["properties"]["qos"]
    assert (qos["type"], qos["minimum"], qos["maximum"]) == ("integer", 0, 2)
    for level, valid in ((0, True), (2, True), (1.0, True), (1.5, False), (3, False), (-1, False)):
        answer = await api.post("/api/v1/publish", json={"topic": "t", "qos": level})
        assert answer.is_success == valid, "in JSON 1.0 is an integer"


async def test_ids_takes_one_of_two(api: httpx.AsyncClient) -> None:
    said = (await api.get(openapi.PATH)).json()["paths"]["/api/v1/ids"]["delete"]
    [one] = said["parameters"]
    assert one["required"] and one["in"] == "query" and one["schema"]["maxProperties"] == 1
    assert not one["schema"]["additionalProperties"]
    for given in ({"topic": "a"}, {"topic": "a", "subtopic": "b"}, {}):
        answer = await api.delete("/api/v1/ids", params=given)
        assert (answer.status_code == 400) == (len(given) != 1), answer.text


async def test_a_wrong_method_is_told_the_right_ones(api: httpx.AsyncClient) -> None:
    for path, item in (await api.get(openapi.PATH)).json()["paths"].items():
        takes = {method.upper() for method in item}
        for method in {"GET", "POST", "PUT", "DELETE", "PATCH"} - takes:
            answer = await api.request(method, re.sub(r"\{\w+\}", "a", path))
            assert answer.status_code == 405, (method, path)
            assert set(answer.headers["allow"].split(", ")) - {"HEAD"} == takes, (method, path)
            assert answer.headers["content-type"] == "application/problem+json"
            assert method in answer.json()["detail"]
    wrong = await api.put("/metrics")
    assert (wrong.status_code, wrong.text) == (405, "expected GET, HEAD here, got PUT\n")
