"""Clients, groups and roles that are managed while the hub runs: mosquitto's dynamic-security.json.

    client ── its roles, the most important first          a role: rules by the kind of access
       └──── its groups, the same ── their roles           publishClientSend, publishClientReceive,
    no rule says anything: `defaultACLAccess`              subscribeLiteral, subscribePattern, …

The file has the format of mosquitto's plugin, and either program goes on with what the other wrote.
`Dynamic` keeps it, and is for a gate both the passwords and the permissions of a listener;
`dynamic_commands` changes it. Passwords are kept as PBKDF2-SHA-512, which is what the format has.
Clients are let in by name, so two with equal roles have rights of their own. In a cluster the file
also has when each thing was changed (`entries`), of which mosquitto knows nothing.
"""

from __future__ import annotations

import base64
import json
import os
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import pbkdf2_hmac, sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from hubbub.auth.acl import AclRights, Subject, covers, overlap
from hubbub.auth.entries import Entries, Told
from hubbub.auth.passwords import Account, Passwords, write_whole
from hubbub.config.sought import reason
from hubbub.core.caches import Caches
from hubbub.core.limits import VERDICTS
from hubbub.core.rights import ADMIN, ALL, READ, RECEIVE, SOME, VERBS, WRITE
from hubbub.core.topics import CLIENT, matches
from hubbub.errors import SettingError
from hubbub.journal.lock import Lock

ROUNDS: Final = 10_000  # 5 ms of the loop for a new password; the file says how many each has
# Where an operator's rights are, for which mosquitto has no word: `publishClientSend` to this and
# the name that is to be managed.
MANAGED: Final = "$CONTROL/hubbub/"

SEND: Final = "publishClientSend"
GET: Final = "publishClientReceive"
LITERAL: Final = "subscribeLiteral"
PATTERN: Final = "subscribePattern"
KINDS: Final = (SEND, GET, LITERAL, PATTERN, "unsubscribeLiteral", "unsubscribePattern")
DEFAULTS: Final = {SEND: False, GET: True, "subscribe": False, "unsubscribe": True}


class Rule(NamedTuple):
    """One rule of a role."""

    kind: str
    topic: str
    priority: int
    allow: bool


class Role:
    def __init__(self, name: str) -> None:
        self.name = name
        self.texts: dict[str, str] = {}
        self.rules: list[Rule] = []

    def of(self, *kinds: str) -> list[Rule]:
        """The rules of these kinds, the most important first."""
        found = [rule for kind in kinds for rule in self.rules if rule.kind == kind]
        return sorted(found, key=lambda rule: -rule.priority)


class Group:
    """`roles`: their priorities, UNSAID for one that was given none."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.texts: dict[str, str] = {}
        self.roles: dict[str, int] = {}
        self.clients: dict[str, int] = {}


class Client:
    """`client`: the only client id that it may have, "" for any."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.texts: dict[str, str] = {}
        self.client = ""
        self.disabled = False
        self.password = self.salt = ""
        self.rounds = 0
        self.roles: dict[str, int] = {}

    def set_password(self, secret: str) -> None:
        salt = os.urandom(12)
        digest = pbkdf2_hmac("sha512", secret.encode(), salt, ROUNDS)
        self.password, self.salt = (base64.b64encode(part).decode() for part in (digest, salt))
        self.rounds = ROUNDS


UNSAID: Final = -1
STAMPS: Final = "hubbubEntries"  # in the file: when what was changed


def ordered(priorities: dict[str, int]) -> list[str]:
    """Names, the most important first."""
    return sorted(priorities, key=lambda name: (-priorities[name], name))


class Book:
    """All that the file says. Nothing here refers to what is not there."""

    def __init__(self) -> None:
        self.clients: dict[str, Client] = {}
        self.groups: dict[str, Group] = {}
        self.roles: dict[str, Role] = {}
        self.anonymous = ""
        self.defaults = dict(DEFAULTS)

    def groups_of(self, client: str) -> dict[str, int]:
        """The groups of a client, with their priorities for it."""
        return {
            group.name: group.clients[client]
            for group in self.groups.values()
            if client in group.clients
        }

    def roles_of(self, user: str) -> list[Role]:
        """All that count for a user, in that order; "" is a client without a name."""
        client = self.clients.get(user)
        if not user:
            groups = [self.anonymous] if self.anonymous else []
        else:
            groups = ordered(self.groups_of(user))
        names = ordered(client.roles) if client is not None else []
        for group in groups:
            names += ordered(self.groups[group].roles)
        return [self.roles[name] for name in names]


# Reading and writing


def read_book(text: str, place: str) -> Book:
    """SettingError if it is not of this format."""
    return _parsed(text, place)[0]


def _parsed(text: str, place: str) -> tuple[Book, list[Any] | None]:
    """With its entries, which mosquitto's program leaves out."""
    try:
        tree = json.loads(text)
        return book_of(tree), tree.get(STAMPS)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise SettingError(
            f"{place} is no dynamic-security.json ({type(error).__name__}: {error}); "
            "`mosquitto_ctrl dynsec init FILE ADMIN` makes one"
        ) from None


def book_of(tree: dict[str, Any]) -> Book:
    book = Book()
    book.defaults.update({name: bool(tree["defaultACLAccess"][name]) for name in DEFAULTS
                          if name in tree.get("defaultACLAccess", {})})  # fmt: skip
    for one in tree.get("roles", []):
        role = book.roles[one["rolename"]] = Role(one["rolename"])
        role.texts = _texts(one)
        role.rules = [rule_of(rule) for rule in one.get("acls", [])]
    for one in tree.get("clients", []):
        client = book.clients[one["username"]] = Client(one["username"])
        client.texts, client.client = _texts(one), one.get("clientid", "")
        client.disabled = bool(one.get("disabled", False))
        client.roles = priorities(one.get("roles", []), "rolename")
        if "password" in one:
            client.password, client.salt = one["password"], one["salt"]
            client.rounds = int(one["iterations"])
    for one in tree.get("groups", []):
        group = book.groups[one["groupname"]] = Group(one["groupname"])
        group.texts = _texts(one)
        group.roles = priorities(one.get("roles", []), "rolename")
        group.clients = priorities(one.get("clients", []), "username")
    book.anonymous = tree.get("anonymousGroup", "")
    _check(book)
    return book


def _check(book: Book) -> None:
    """KeyError where something is named that is not there."""
    holders: list[Client | Group] = [*book.clients.values(), *book.groups.values()]
    for holder in holders:
        for name in holder.roles:
            book.roles[name]
    for group in book.groups.values():
        for name in group.clients:
            book.clients[name]
    if book.anonymous:
        book.groups[book.anonymous]


def rule_of(tree: dict[str, Any]) -> Rule:
    """ValueError if its kind is unknown."""
    kind, topic = tree["acltype"], tree["topic"]
    if kind not in KINDS or not isinstance(topic, str):
        raise ValueError(f"{kind!r} of {topic!r} is no rule")
    return Rule(kind, topic, int(tree.get("priority", 0)), bool(tree.get("allow", False)))


def priorities(found: list[dict[str, Any]], name: str) -> dict[str, int]:
    return {one[name]: int(one.get("priority", UNSAID)) for one in found}


def _texts(tree: dict[str, Any]) -> dict[str, str]:
    """What people wrote about it; the first version spelled them otherwise."""
    found = {name: tree.get(name, tree.get(old)) for name, old in _SPELLED.items()}
    return {name: text for name, text in found.items() if isinstance(text, str)}


_SPELLED: Final = {"textname": "textName", "textdescription": "textDescription"}


def said_roles(roles: dict[str, int]) -> list[dict[str, Any]]:
    return _references(roles, "rolename")


def _references(found: dict[str, int], key: str) -> list[dict[str, Any]]:
    return [
        {key: name, **({"priority": found[name]} if found[name] != UNSAID else {})}
        for name in ordered(found)
    ]


def said_role(role: Role) -> dict[str, Any]:
    rules = [
        {"acltype": kind, "topic": rule.topic, "priority": rule.priority, "allow": rule.allow}
        for kind in KINDS
        for rule in role.of(kind)
    ]
    return {"rolename": role.name, **role.texts, "acls": rules}


def said_client(client: Client) -> dict[str, Any]:
    """Without its password."""
    found: dict[str, Any] = {"username": client.name}
    if client.client:
        found["clientid"] = client.client
    found.update(client.texts)
    if client.disabled:
        found["disabled"] = True
    return {**found, "roles": said_roles(client.roles)}


def said_group(group: Group) -> dict[str, Any]:
    members = _references(group.clients, "username")
    return {"groupname": group.name, **group.texts, "roles": said_roles(group.roles),
            "clients": members}  # fmt: skip


def said(book: Book, entries: Entries | None = None) -> str:
    """The text of the file."""
    return _text_of(tree_of(book), entries)


def _text_of(tree: dict[str, Any], entries: Entries | None) -> str:
    """What json itself indents it indents in Python: a second for some ten thousand clients."""
    beside = {STAMPS: entries.saved()} if entries is not None else {}
    dense = json.dumps({**tree, **beside}).encode()
    return msgspec.json.format(dense, indent=1).decode() + "\n"


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def tree_of(book: Book) -> dict[str, Any]:
    clients = [{**said_client(one), **_proof(one)} for one in book.clients.values()]
    return {
        "defaultACLAccess": book.defaults,
        "clients": clients,
        "groups": [said_group(group) for group in book.groups.values()],
        **({"anonymousGroup": book.anonymous} if book.anonymous else {}),
        "roles": [said_role(role) for role in book.roles.values()],
    }


def _proof(client: Client) -> dict[str, Any]:
    if not client.password:
        return {}
    return {"password": client.password, "salt": client.salt, "iterations": client.rounds}


# What a gate asks


class RoleRights(AclRights):
    """What one user may: the first rule that says something, of all roles in their order."""

    def __init__(
        self, roles: list[Role], defaults: dict[str, bool], verdicts: Caches
    ) -> None:
        super().__init__([], verdicts)
        self._roles = roles
        self._defaults = defaults

    def change(self, roles: list[Role], defaults: dict[str, bool]) -> None:
        self._roles, self._defaults = roles, defaults
        self.follow([])

    def explain(self, verb: str, name: str) -> tuple[bool, str]:
        access, extent = VERBS[verb]
        if access == ADMIN:
            return self._all(SEND, MANAGED + name)
        if access == READ and extent != ALL and name.startswith(CLIENT):
            return True, ""
        if verb == RECEIVE:
            return self._one(GET, name)
        if access == WRITE:
            return self._one(SEND, name)
        found = self._subscribe(name)
        if found[0] and extent != SOME:  # what is subscribed to is not always received
            found = self._all(GET, name) if extent == ALL else self._one(GET, name)
        if not found[0] and access & WRITE:
            found = self._one(SEND, name)
        return found

    def _said(self, *kinds: str) -> Iterator[tuple[Rule, str]]:
        for role in self._roles:
            for rule in role.of(*kinds):
                word = "allow" if rule.allow else "deny"
                yield rule, f"role {role.name} ({rule.kind} {rule.topic}: {word})"

    def _one(self, kind: str, name: str) -> tuple[bool, str]:
        for rule, place in self._said(kind):
            if matches(rule.topic, name):
                return rule.allow, place
        return self._default(kind)

    def _subscribe(self, name: str) -> tuple[bool, str]:
        for rule, place in self._said(LITERAL, PATTERN):
            if rule.topic == name or (rule.kind == PATTERN and covers(rule.topic, name)):
                return rule.allow, place
        return self._default("subscribe")

    def _all(self, kind: str, name: str) -> tuple[bool, str]:
        """About everything that a filter means: one rule against any of it is enough."""
        for rule, place in self._said(kind):
            if rule.allow and covers(rule.topic, name):
                return True, place
            if not rule.allow and overlap(rule.topic, name):
                return False, place
        return self._default(kind)

    def _default(self, kind: str) -> tuple[bool, str]:
        return self._defaults.get(kind, False), f"defaultACLAccess ({kind})"


class _Accounts(Passwords):
    """The clients that may come in, as passwords are checked: the book says who they are."""

    def __init__(self, owner: Dynamic) -> None:
        self._owner = owner
        super().__init__(owner.file)

    def read(self) -> None:
        self._forget({
            client.name: Account(_hash(client), None, client.client)
            for client in self._owner.book.clients.values()
            if not client.disabled
        })  # fmt: skip

    def is_disabled(self, user: str) -> bool:
        client = self._owner.book.clients.get(user)
        return client is not None and client.disabled


def _hash(client: Client) -> str:
    """In the form of mosquitto's password files; without a password nothing fits."""
    return f"$7${client.rounds}${client.salt}${client.password}" if client.password else "-"


class Dynamic:
    """The file, and the rights of whom it names. SettingError if it cannot be read.

    `told` is called with what was changed here, if other nodes are to hear of it. The file may be
    one for several processes: each takes in what it says before it writes it.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._given: weakref.WeakValueDictionary[str, RoleRights] = weakref.WeakValueDictionary()
        self._verdicts = Caches(VERDICTS)
        self.entries: Entries | None = None
        self.told: Callable[[list[Told]], None] = lambda told: None
        self._stamp: Callable[[], int] = lambda: 0
        self.beside: Collection[str] = ()  # nodes with the same file: what they tell is in it
        self._node = ""
        self._seen = ""
        self.book = self._read()
        self.passwords = _Accounts(self)

    def share(self, node: str, stamp: Callable[[], int]) -> None:
        """This is a node of a cluster: what is changed is remembered with its time."""
        self._node, self._stamp = node, stamp
        self.entries = self.entries or Entries()
        if not self.entries.known:
            self.entries.begin(tree_of(self.book))
        self.entries.note(tree_of(self.book), stamp(), node)

    def read(self) -> None:
        """The file was changed by somebody else; SettingError leaves what it said before. With
        entries it is one voice among others: what was changed since it was written stays changed.
        """
        if self.entries is None:
            self.book = self._read()
            self.hold()
            return
        with self._alone():
            known = self._copy()
            news, behind = self._meet(known)
            self._know(known)
            self.told(news)
            if behind:  # somebody edited it: the next start knows when
                self._write()

    def save(self) -> None:
        """Whole or not at all; SettingError if it cannot be written, and nothing is changed."""
        if self.entries is None:
            write_whole(self.file, said(self.book))
            return
        before = self.entries
        try:
            with self._alone():
                known, tree = self._copy(), tree_of(self.book)
                news = known.note(tree, self._stamp(), self._node)
                if self._changed():
                    news += self._meet(known)[0]
                    self.book = book_of(known.tree())
                    tree = tree_of(self.book)
                self.entries = known
                self._write(tree)
        except SettingError:
            self.entries = before
            self.book = book_of(before.tree())
            raise
        self.told(news)

    def learn(self, told: Iterable[Told], node: str) -> bool:
        """What was changed at another node; False if it is known. SettingError if it is no
        permission, or cannot be written: it holds all the same, until the next start.
        """
        known = self._copy()
        try:
            if not known.merge(told):
                return False
            self._know(known)
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
            raise SettingError(f"no permissions: {type(error).__name__}: {error}"[:200]) from None
        if node in self.beside:
            return True
        with self._alone():
            behind = True
            if self._changed():  # by another process that was told this, too
                known = self._copy()
                behind = self._meet(known)[1]
                self._know(known)
            if behind:
                self._write()
        return True

    # The file, when others write it too

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While no other process reads it to write it: of several processes all have one."""
        lock = Lock(self.file.with_name(f"{self.file.name}.lock"))
        with suppress(OSError):  # where there can be no lock nothing can be written either
            lock.wait()
        try:
            yield
        finally:
            lock.release()

    def _changed(self) -> bool:
        """Not what was read or written here last."""
        return self.file.exists() and self._seen != _digest(self._text())

    def _meet(self, known: Entries) -> tuple[list[Told], bool]:
        """Take what the file says into what is known: what of it was not, and whether the file
        lacks anything. What somebody has edited there was changed now.
        """
        text = self._text()
        book, saved = _parsed(text, str(self.file))
        found = Entries()
        if saved is None:  # mosquitto's program wrote it: all that is another than here is edited
            found.known = dict(known.known)
        else:
            self._recall(found, saved, book)
        stamp = max(self._stamp(), 1 + known.latest())
        edited = found.note(tree_of(book), stamp, self._node)
        news = [one for one in found.whole() if one.entry > known.get(one.key)]
        known.merge(news)
        self._seen = _digest(text)
        return news, bool(edited) or known.known != found.known

    def _know(self, known: Entries) -> None:
        self.book = book_of(known.tree())
        self.entries = known
        self.hold()

    def _copy(self) -> Entries:
        assert self.entries is not None
        copy = Entries()
        copy.known = dict(self.entries.known)
        return copy

    def _write(self, tree: dict[str, Any] | None = None) -> None:
        text = _text_of(tree or tree_of(self.book), self.entries)
        write_whole(self.file, text)
        self._seen = _digest(text)

    def _read(self) -> Book:
        """With the entries, if the file has some."""
        text = self._text()
        book, saved = _parsed(text, str(self.file))
        if saved is not None:
            self.entries = Entries()
            self._recall(self.entries, saved, book)
        self._seen = _digest(text)
        return book

    def _recall(self, entries: Entries, saved: list[Any], book: Book) -> None:
        try:
            entries.recall(saved, tree_of(book))
        except (ValueError, TypeError) as error:
            raise SettingError(f"{self.file}: {STAMPS} is damaged: {error}") from None

    def hold(self) -> None:
        """What the book says now holds, for who is here too."""
        self.passwords.read()
        for user, rights in list(self._given.items()):
            rights.change(*self._found(user))

    def rights(
        self, user: str, client: str, lines: tuple[str, ...] | None = None
    ) -> RoleRights:
        rights = self._given.get(user)
        if rights is None:
            rights = self._given[user] = RoleRights(*self._found(user), self._verdicts)
        return rights

    def subject(self, user: str, client: str, lines: tuple[str, ...] | None = None) -> Subject:
        return Subject(None, user, "")

    def _found(self, user: str) -> tuple[list[Role], dict[str, bool]]:
        """Nobody that the file does not name may anything."""
        known = not user or user in self.book.clients
        return self.book.roles_of(user), self.book.defaults if known else {}

    def _text(self) -> str:
        try:
            return self.file.read_text("utf-8")
        except OSError as error:
            raise SettingError(
                f"dynamic_security: cannot read {self.file}: {reason(self.file, error)}; "
                "`mosquitto_ctrl dynsec init FILE ADMIN` makes one"
            ) from None
        except UnicodeDecodeError:
            raise SettingError(f"dynamic_security: {self.file} is not UTF-8 text") from None
