"""What a dynamic-security.json says as entries, each with when and where it was changed last.

    ("client", "ann")                    she is there          values are JSON, "" is gone: what
    ("client", "ann", "role", "reader")  with this priority    goes is remembered as such

So nodes that changed the same file agree on one: of two entries the later one counts, and of what
is about a client, group or role only what is not older than that itself. Each thing that an admin
can take away is an entry of its own, so no other change, however late, brings it back with it.
`dynamic` keeps them in its file and `runtime.control` exchanges them. No I/O.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any, Final, NamedTuple

Key = tuple[str, ...]
Tree = dict[str, Any]

GONE_MOST: Final = 100_000  # that are remembered as gone, some 20 MB; then the oldest are forgotten
GONE: Final = ""
_DIGEST: Final = 16  # hex digits of a value, to see that somebody edited the file
_RULE: Final = 5  # the length of a rule's key
_LISTS: Final = {"client": "clients", "group": "groups", "role": "roles"}
_NAMES: Final = {"client": "username", "group": "groupname", "role": "rolename"}
_SAID: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


class Entry(NamedTuple):
    """The greater of two counts: the later; of equal ones any, but everywhere the same."""

    stamp: int
    node: str
    value: str


class Told(NamedTuple):
    """An entry as it is told."""

    key: Key
    entry: Entry


class Entries:
    """All that are known, also of what is gone."""

    def __init__(self) -> None:
        self.known: dict[Key, Entry] = {}

    def note(self, tree: Tree, stamp: int, node: str) -> list[Told]:
        """The document says this now: what is another than before was changed now."""
        values = dict(self._values(tree))
        live = [key for key, entry in self.known.items() if entry.value != GONE]
        changed = {key: GONE for key in live if key not in values}
        for key, value in values.items():
            if not self._counts(key) or self.known[key].value != value:
                changed[key] = value
        stamp = max(stamp, 1 + self.latest())
        news = [Told(key, Entry(stamp, node, value)) for key, value in changed.items()]
        self.known.update(news)
        self._forget()
        return news

    def merge(self, told: Iterable[Told]) -> bool:
        """Take what is later than what is known; False if nothing was."""
        later = [one for one in told if one.entry > self.get(one.key)]
        self.known.update(later)
        self._forget()
        return bool(later)

    def get(self, key: Key) -> Entry:
        """What is known; of what never was anything is later."""
        return self.known.get(key, _NEVER)

    def latest(self) -> int:
        return max((one.stamp for one in self.known.values()), default=0)

    def whole(self) -> list[Told]:
        return [Told(key, entry) for key, entry in self.known.items()]

    def tree(self) -> Tree:
        """The document, of what counts."""
        things: dict[Key, Tree] = {}
        tree: Tree = {"defaultACLAccess": {}, **{name: [] for name in _LISTS.values()}}
        live = [key for key in self.known if self._counts(key)]
        for key in sorted(live, key=len):
            value = json.loads(self.known[key].value)
            if key[0] == "default":
                tree["defaultACLAccess"][key[1]] = value
            elif key[0] == "anonymous":
                tree["anonymousGroup"] = value
            elif len(key) == 2:
                things[key] = {_NAMES[key[0]]: key[1]}
                tree[_LISTS[key[0]]].append(things[key])
            else:
                _PUT[key[2]](things[key[:2]], key, value)
        for role in tree["roles"]:
            role.get("acls", []).sort(key=lambda rule: (rule.pop("at"), str(rule)))
        return tree

    # In the file

    def saved(self) -> list[Any]:
        return [
            [*key, entry.stamp, entry.node, _mark(key, entry.value)]
            for key, entry in self.known.items()
        ]

    def recall(self, saved: list[Any], tree: Tree) -> None:
        """As they were saved beside this document. What somebody has edited there since then is
        none of them any more, for `note`.
        """
        stamps = {tuple(key): Entry(stamp, node, mark) for *key, stamp, node, mark in saved}
        self.known = {key: one for key, one in stamps.items() if one.value == GONE}
        for key, value in self._values(tree, lambda key: _place(stamps.get(key, _NEVER).value)):
            one = stamps.get(key)
            if one is not None and one.value == _mark(key, value):
                self.known[key] = one._replace(value=value)
        edited = [key for key in stamps if key not in self.known]
        for key in edited:  # later than it was, whatever the clock says
            self.known[key] = stamps[key]._replace(value=_UNKNOWN)

    def begin(self, tree: Tree) -> None:
        """A document without any: all of it is older than every change."""
        self.known = {key: Entry(0, "", value) for key, value in self._values(tree)}

    # What counts

    def _counts(self, key: Key) -> bool:
        entry = self.known.get(key)
        if entry is None or entry.value == GONE:
            return False
        return all(self._since(one, entry) for one in _abouts(key, entry.value))

    def _since(self, about: Key, entry: Entry) -> bool:
        there = self.known.get(about)
        return there is not None and there.value != GONE and there[:2] <= entry[:2]

    def _forget(self) -> None:
        """What can never count again, and the oldest of too many that are gone."""
        for key in [key for key in self.known if len(key) > 2 and self._outlived(key)]:
            del self.known[key]
        gone = [key for key, entry in self.known.items() if entry.value == GONE]
        if len(gone) > GONE_MOST:
            for key in sorted(gone, key=lambda one: self.known[one].stamp)[:-GONE_MOST]:
                del self.known[key]

    def _outlived(self, key: Key) -> bool:
        there, entry = self.known.get(key[:2]), self.known[key]
        return there is not None and there[:2] > entry[:2]

    def _at(self, key: Key) -> int | None:
        """The place of a rule among those of its role."""
        value = self.get(key).value
        return json.loads(value)[2] if value not in (GONE, _UNKNOWN) else None

    def _values(
        self, tree: Tree, places: Callable[[Key], int | None] | None = None
    ) -> Iterator[tuple[Key, str]]:
        """A rule keeps its place, unless the document has it after one that has a later one."""
        last: dict[Key, int] = {}
        for key, value in _flat(tree):
            if len(key) == _RULE:
                role, equals = key[:2], (*key[:4], str(value[0]))
                at = (places or self._at)(key)
                if at is None or at < last.get(equals, -1):
                    at = last.get(role, -1) + 1
                last[equals] = at
                last[role] = max(at, last.get(role, -1))
                value = [*value, at]
            yield key, _SAID(value)


_NEVER: Final = Entry(-1, "", GONE)
_UNKNOWN: Final = "null"  # the value of what was edited in the file: no entry has it


def _mark(key: Key, value: str) -> str:
    """Of a value in the file: its digest; of a rule its place, too, which mosquitto knows not."""
    if not value:
        return GONE
    digest = sha256(value.encode()).hexdigest()[:_DIGEST]
    return f"{digest} {json.loads(value)[2]}" if len(key) == _RULE else digest


def _place(mark: str) -> int | None:
    return int(mark.partition(" ")[2] or -1) if mark else None


def _abouts(key: Key, value: str) -> list[Key]:
    """The clients, groups and roles that an entry speaks of."""
    if key[0] == "anonymous":
        return [("group", str(json.loads(value)))]
    if key[0] == "default" or len(key) == 2:
        return []
    return [key[:2], *([(key[2], key[3])] if key[2] in ("role", "client") else [])]


def _flat(tree: Tree) -> Iterator[tuple[Key, Any]]:
    for name, allowed in tree.get("defaultACLAccess", {}).items():
        yield ("default", name), allowed
    if tree.get("anonymousGroup"):
        yield ("anonymous",), tree["anonymousGroup"]
    for kind, listed in _LISTS.items():
        for thing in tree.get(listed, []):
            yield from _thing(kind, thing[_NAMES[kind]], thing)


def _thing(kind: str, name: str, thing: Tree) -> Iterator[tuple[Key, Any]]:
    here = kind, name
    yield here, True
    for word in ("textname", "textdescription", "clientid", "disabled"):
        if word in thing:
            yield (*here, "word", word), thing[word]
    if "password" in thing:
        yield (*here, "proof", ""), [thing["password"], thing["salt"], thing["iterations"]]
    for other in ("role", "client"):
        for one in thing.get(_LISTS[other], []):
            yield (*here, other, one[_NAMES[other]]), one.get("priority", -1)
    said = set()
    for rule in thing.get("acls", []):
        key = rule["acltype"], rule["topic"]
        if key not in said:  # the first decides
            said.add(key)
            yield (*here, "rule", *key), [rule.get("priority", 0), rule.get("allow", False)]


def _put_word(thing: Tree, key: Key, value: Any) -> None:
    thing[key[3]] = value


def _put_proof(thing: Tree, key: Key, value: Any) -> None:
    thing["password"], thing["salt"], thing["iterations"] = value


def _put_other(thing: Tree, key: Key, value: Any) -> None:
    said = {_NAMES[key[2]]: key[3], **({"priority": value} if value >= 0 else {})}
    thing.setdefault(_LISTS[key[2]], []).append(said)


def _put_rule(thing: Tree, key: Key, value: Any) -> None:
    priority, allow, at = value
    rule = {"acltype": key[3], "topic": key[4], "priority": priority, "allow": allow, "at": at}
    thing.setdefault("acls", []).append(rule)


_PUT: Final[dict[str, Callable[[Tree, Key, Any], None]]] = {
    "word": _put_word, "proof": _put_proof, "role": _put_other, "client": _put_other,
    "rule": _put_rule,
}  # fmt: skip
