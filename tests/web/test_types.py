"""hubbub.d.ts names what hubbub.js has, no more and no less, and every hub serves both."""

from __future__ import annotations

import re

import httpx

from hubbub.web import script
from tests.process import RunningHub

CODE = script.source().decode()
TYPES = script.source(script.TYPES).decode()
METHOD = r"^  (?:async )?([a-z]\w*)(?:<[^>]*>)?\("


def exported(text: str) -> set[str]:
    kinds = r"^export (?:async )?(?:class|function) (\w+)"
    return set(re.findall(kinds, text, re.MULTILINE))


def body(text: str) -> str:
    """What stands in the class Client."""
    return text.partition("export class Client ")[2].partition("\n}")[0]


def test_names() -> None:
    assert exported(CODE) == exported(TYPES)
    methods = set(re.findall(METHOD, body(CODE), re.MULTILINE))
    typed = set(re.findall(METHOD, body(TYPES), re.MULTILINE)) - {"addEventListener"}
    assert methods == typed and {"publish", "call", "ready"} <= typed
    for field in ("state", "etid"):
        assert f"readonly {field}:" in body(TYPES) and f"\n  {field} = " in body(CODE)
    options = re.search(r"const \{ (.*) \} = options", CODE)
    assert options is not None
    for option in re.findall(r"(\w+)(?: = [^,]*)?(?:,|$)", options[1]):
        assert re.search(rf"^  {option}\?:", TYPES, re.MULTILINE), option


def test_both_are_served(hub: RunningHub) -> None:
    for path in (script.PATH, script.TYPES):
        answer = httpx.get(hub.url("http") + path, trust_env=False)
        assert answer.content == script.source(path)
        assert answer.headers["content-type"].startswith("text/javascript")
