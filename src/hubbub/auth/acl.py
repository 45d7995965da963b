"""Permissions by user and topic, from files in mosquitto's format.

    topic read $SYS/#                   clients without a user name
    user ann
    topic readwrite house/#             ann, on this filter
    topic deny house/safe               refusals come before permissions, wherever they stand
    pattern write devices/%c/state      everybody: %c is the client id, %u the user name

The rules of a user come first, then the patterns; the first that says anything decides, and what
no rule mentions is forbidden. Access is `read` (receive), `write` (publish), `readwrite` (also
when left out) or `deny`. Filters follow the rules of topics: `#` does not mean names with `$`.

Two things differ from what mosquitto does with the same file. A subscription none of whose
messages might be received is refused instead of staying silent. And what is published to a
client's own `$client/…` address it may always receive: who may send there is asked of the sender.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from hubbub.config.sought import reason
from hubbub.core.caches import Caches, weight_of
from hubbub.core.limits import VERDICTS
from hubbub.core.rights import ADMIN, ALL, EXACTLY, READ, SOME, VERBS, WRITE, Rights
from hubbub.core.topics import CLIENT, is_filter, matches
from hubbub.errors import SettingError

_ACCESS: Final = {
    "read": READ, "write": WRITE, "readwrite": READ | WRITE, "manage": ADMIN, "deny": 0,
}  # fmt: skip


class Rule(NamedTuple):
    """`access` to what matches `filter`: READ, WRITE and ADMIN as bits, 0 refuses all.

    `place` is its line, as a refusal names it.
    """

    access: int
    filter: str
    place: str = ""


class Subject(NamedTuple):
    """All that permissions depend on: whose section of the file, and what patterns ask for.

    `lines`: what a token says instead of a section.
    """

    section: str | None
    user: str
    client: str
    lines: tuple[str, ...] | None = None


class AclRights(Rights):
    """The permissions of one subject, refusals before permissions in each part of the file."""

    def __init__(self, rules: list[Rule], verdicts: Caches, by_token: bool = False) -> None:
        super().__init__()
        self._caches = verdicts
        self.found_by_name = not by_token
        self._rules = rules
        self._verdicts: dict[tuple[str, str], bool] = {}

    def follow(self, rules: list[Rule]) -> None:
        """The file was read again."""
        self._rules = rules
        self._caches.forget(self._verdicts)

    def may(self, verb: str, name: str) -> bool:
        verdict = self._verdicts.get((verb, name))
        if verdict is None:
            verdict = self.explain(verb, name)[0]
            self._caches.goes_with(self, self._verdicts)
            self._caches.keep(self._verdicts, (verb, name), verdict, weight_of(name))
        return verdict

    def ask(self, verb: str, name: str) -> bool:
        return self.explain(verb, name)[0]

    def decided_by(self, verb: str, name: str) -> str:
        permitted, place = self.explain(verb, name)
        return "" if permitted else place

    def explain(self, verb: str, name: str) -> tuple[bool, str]:
        """The verdict, and the line that says so; "" if none does."""
        access, extent = VERBS[verb]
        if access == READ and extent != ALL and name.startswith(CLIENT):
            return True, ""
        refuses, permits = _TESTS[extent]
        for rule in self._rules:
            if rule.access == 0 and refuses(rule.filter, name):
                return False, rule.place
            if rule.access & access and permits(rule.filter, name):
                return True, rule.place
        return False, ""


def covers(wide: str, narrow: str) -> bool:
    """Whether every name that matches `narrow` matches `wide`."""
    if not _same_world(wide, narrow):
        return False
    levels = narrow.split("/")
    for index, level in enumerate(wide.split("/")):
        if level == "#":
            return True
        if index >= len(levels) or levels[index] == "#" or level not in ("+", levels[index]):
            return False
    return len(levels) == wide.count("/") + 1


def overlap(one: str, other: str) -> bool:
    """Whether some name matches both."""
    if not _same_world(one, other):
        return False
    left, right = one.split("/"), other.split("/")
    for a, b in zip(left, right, strict=False):
        if "#" in (a, b):
            return True
        if a != b and "+" not in (a, b):
            return False
    if len(left) == len(right):
        return True
    longer = left if len(left) > len(right) else right
    return longer[min(len(left), len(right))] == "#"  # `a/#` means `a` too


# By extent: when a rule that refuses is about a filter, and when one that permits is.
_TESTS: Final = {EXACTLY: (matches, matches), SOME: (covers, overlap), ALL: (overlap, covers)}


def _same_world(one: str, other: str) -> bool:
    """A filter that begins with a wildcard never means names that begin with `$`."""
    return (one[:1] == "$") == (other[:1] == "$") or not {one[:1], other[:1]} & {"+", "#"}


class Rules:
    """One reading of a file: the rules of each user ("" = clients without one), the patterns.

    Without a file there are none, and only what tokens say is allowed.
    """

    def __init__(self, file: Path | None) -> None:
        self.users: dict[str, list[Rule]] = {"": []}
        self.patterns: list[Rule] = []
        section = self.users[""]
        for number, words in _lines(file) if file is not None else ():
            place = f"{file}:{number}"
            word, _, rest = words.partition(" ")
            if word == "user" and rest.strip():
                section = self.users.setdefault(rest.strip(), [])
            elif word in ("topic", "pattern") and rest.strip():
                rules = section if word == "topic" else self.patterns
                rules.append(_rule(rest.strip(), place))
            else:
                raise SettingError(
                    f"{place}: expected `user NAME`, `topic [ACCESS] FILTER` or "
                    f"`pattern [ACCESS] FILTER`, got {words!r}"
                )
        for rules in (self.patterns, *self.users.values()):
            rules.sort(key=lambda rule: rule.access != 0)
        self._by_user = any("%u" in rule.filter for rule in self.patterns)
        self._by_client = any("%c" in rule.filter for rule in self.patterns)

    def subject(self, user: str, client: str, lines: tuple[str, ...] | None = None) -> Subject:
        section = user if lines is None and user in self.users else None
        return Subject(section, user * self._by_user, client * self._by_client, lines)

    def of(self, subject: Subject) -> list[Rule]:
        own = self.users[subject.section] if subject.section is not None else []
        if subject.lines is not None:
            own = rules_of(subject.lines)
        return [*own, *self._filled_in(subject)]

    def _filled_in(self, subject: Subject) -> Iterator[Rule]:
        for access, wanted, place in self.patterns:
            needs = [name for mark, name in (("%u", subject.user), ("%c", subject.client))
                     if mark in wanted]  # fmt: skip
            # A wildcard in a client's name would permit it what is others'. It may refuse more.
            if not all(needs) or (access and set("+#") & set("".join(needs))):
                continue
            parts = [part.replace("%u", subject.user) for part in wanted.split("%c")]
            yield Rule(access, subject.client.join(parts), place)


class Acl:
    """The permissions of one file. Clients with equal permissions get one object.

    `read` again when the file changed: rights that were given follow. SettingError leaves the
    old rules.
    """

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self._given: weakref.WeakValueDictionary[Subject, AclRights] = weakref.WeakValueDictionary()
        self._rules = Rules(file)
        self._verdicts = Caches(VERDICTS)

    def read(self) -> None:
        self._rules = Rules(self.file)
        for subject, rights in list(self._given.items()):
            rights.follow(self._rules.of(self._now(subject)))

    def rights(
        self, user: str, client: str, lines: tuple[str, ...] | None = None
    ) -> AclRights:
        """`lines` stand for the section of the user: what its token says. SettingError of these."""
        subject = self._rules.subject(user, client, lines)
        rights = self._given.get(subject)
        if rights is None:
            rules = self._rules.of(subject)
            rights = AclRights(rules, self._verdicts, lines is not None)
            self._given[subject] = rights
        return rights

    def subject(self, user: str, client: str, lines: tuple[str, ...] | None = None) -> Subject:
        """What its permissions depend on, as the file says now."""
        return self._rules.subject(user, client, lines)

    def _now(self, subject: Subject) -> Subject:
        """A section that is gone leaves its users the patterns."""
        return subject if subject.section in self._rules.users else subject._replace(section=None)


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """The lines that say something, with their numbers."""
    try:
        text = file.read_text("utf-8")
    except OSError as error:
        raise SettingError(f"cannot read the permissions {file}: {reason(file, error)}") from None
    except UnicodeDecodeError:
        raise SettingError(f"the permissions {file} are not UTF-8 text") from None
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip().replace("\t", " ")
        if words and not words.startswith("#"):
            yield number, words


def rules_of(lines: tuple[str, ...]) -> list[Rule]:
    """The rules of a token, refusals first; SettingError says which line is none."""
    rules = [_rule(line.strip(), "the token") for line in lines]
    return sorted(rules, key=lambda rule: rule.access != 0)


def _rule(text: str, place: str) -> Rule:
    word, _, rest = text.partition(" ")
    if rest.strip() and word not in _ACCESS:
        raise SettingError(f"{place}: {word!r} is none of {', '.join(_ACCESS)}")
    said = f"{place} ({text})"
    if rest.strip():
        found = Rule(_ACCESS[word], rest.strip(), said)
    else:
        found = Rule(READ | WRITE, text, said)
    if not is_filter(found.filter):
        raise SettingError(f"{place}: {found.filter!r} is not a topic filter")
    return found
