"""The commands of `$CONTROL/dynamic-security/v1`: JSON in, the book changed, JSON out.

    {"commands": [{"command": "createClient", "username": "ann", "correlationData": "7"}, …]}
    {"responses": [{"command": "createClient", "correlationData": "7"}, …]}

Names, fields and the words of errors are those of mosquitto's plugin, so that `mosquitto_ctrl` and
other programs for it work. A command that fails changes nothing. Who may ask was asked before; the
file is written by who calls. No I/O.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from hubbub.auth.dynamic import (
    DEFAULTS,
    KINDS,
    UNSAID,
    Book,
    Client,
    Group,
    Role,
    Rule,
    ordered,
    priorities,
    said_client,
    said_role,
    said_roles,
)
from hubbub.core.limits import CONTROL_BYTES, NAME_BYTES
from hubbub.core.topics import is_filter
from hubbub.errors import HubbubError

_UNKNOWN: Final = "Unknown command"


class Wrong(HubbubError):
    """A command that cannot be done; the text goes to who asked."""


class Done(NamedTuple):
    """What became of a message: the answer, and of each command what, on what, and why not."""

    answer: list[dict[str, Any]]
    changed: bool
    told: list[tuple[str, str, str]]


Tree = dict[str, Any]
Command = Callable[[Book, Tree], Tree | None]


def run(book: Book, payload: bytes) -> Done:
    """Do what a message asks for, command by command."""
    try:
        commands = _commands(payload)
    except Wrong as error:
        return Done([{"command": _UNKNOWN, "error": str(error)}], False, [("?", "", str(error))])
    answers, told, changed = [], [], False
    for command in commands:
        answer, failed = _do(book, command)
        answers.append(answer)
        if answer["command"] not in _ASKS:
            changed = changed or not failed
            told.append((answer["command"], _about(command), failed))
    return Done(answers, changed, told)


def _commands(payload: bytes) -> Sequence[object]:
    if len(payload) > CONTROL_BYTES:
        raise Wrong(f"Payload of more than {CONTROL_BYTES} bytes")
    try:
        tree = json.loads(payload)
    except (ValueError, RecursionError):
        raise Wrong("Payload not valid JSON") from None
    commands = tree.get("commands") if isinstance(tree, dict) else None
    if not isinstance(commands, list):
        raise Wrong("Invalid/missing commands")
    return commands


def _do(book: Book, command: object) -> tuple[Tree, str]:
    """The answer, and why it failed ("" if it did not)."""
    answer: Tree = {"command": _UNKNOWN}
    try:
        if not isinstance(command, dict):
            raise Wrong("Command not an object")
        if not isinstance(command.get("command"), str):
            raise Wrong("Missing command")
        answer["command"] = command["command"]
        if isinstance(command.get("correlationData"), str):
            answer["correlationData"] = command["correlationData"]
        found = COMMANDS.get(command["command"])
        if found is None:
            raise Wrong(_UNKNOWN)
        data = found(book, command)
        if data is not None:
            answer["data"] = data
        return answer, ""
    except Wrong as error:
        answer["error"] = str(error)
        return answer, str(error)


def _about(command: object) -> str:
    """Whom or what a command is about, for the log; nothing in it is secret."""
    if not isinstance(command, dict):
        return ""
    names = [f"{key} {command[key]!r:.100}" for key in _NAMED if isinstance(command.get(key), str)]
    return ", ".join(names)


_NAMED: Final = ("username", "groupname", "rolename", "acltype", "topic", "clientid")


# What commands say


def _text(command: Tree, field: str, empty: bool = False) -> str:
    value = command.get(field)
    right = isinstance(value, str) and len(value) <= NAME_BYTES and (value or empty)
    if not right or not _printable(value):
        raise Wrong(f"Invalid/missing {field}")
    return str(value)


def _printable(value: object) -> bool:
    """No line ends, and nothing that UTF-8 cannot say."""
    return isinstance(value, str) and (not value or value.isprintable())


def _maybe(command: Tree, field: str) -> str | None:
    """A text that may be left out."""
    return _text(command, field, empty=True) if field in command else None


def _priority(command: Tree) -> int:
    value = command.get("priority", UNSAID)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > 1 << 31:
        raise Wrong("Invalid/missing priority")
    return value


def _texts(holder: Client | Group | Role, command: Tree) -> None:
    for name in ("textname", "textdescription"):
        text = _maybe(command, name)
        if text is not None:
            holder.texts[name] = text


def _listed(
    command: Tree, field: str, key: str, known: dict[str, Any], missing: str
) -> dict[str, int]:
    """Names with their priorities, each of them known."""
    found = command[field]
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise Wrong(f"Invalid/missing {field}")
    for one in found:
        if _text(one, key) not in known:
            raise Wrong(missing)
        _priority(one)
    return priorities(found, key)


def _client(book: Book, command: Tree) -> Client:
    found = book.clients.get(_text(command, "username"))
    if found is None:
        raise Wrong("Client not found")
    return found


def _group(book: Book, command: Tree) -> Group:
    found = book.groups.get(_text(command, "groupname"))
    if found is None:
        raise Wrong("Group not found")
    return found


def _role(book: Book, command: Tree) -> Role:
    found = book.roles.get(_text(command, "rolename"))
    if found is None:
        raise Wrong("Role not found")
    return found


def _page(command: Tree, names: list[str], said: Callable[[str], Tree], what: str) -> Tree:
    """`count` and `offset` as numbers, `verbose` for more than names."""
    count, offset = command.get("count", -1), command.get("offset", 0)
    if not isinstance(count, int) or not isinstance(offset, int) or offset < 0:
        raise Wrong("Invalid/missing count or offset")
    shown = names[offset:] if count < 0 else names[offset : offset + count]
    found = [said(name) for name in shown] if command.get("verbose") is True else shown
    return {"totalCount": len(names), what: found}


# Clients


def _create_client(book: Book, command: Tree) -> None:
    name = _text(command, "username")
    if name in book.clients:
        raise Wrong("Client already exists")
    client = Client(name)
    if "password" in command:
        client.set_password(_text(command, "password"))
    client.client = _maybe(command, "clientid") or ""
    _fill_client(book, client, command)
    book.clients[name] = client


def _fill_client(book: Book, client: Client, command: Tree) -> None:
    """Everything is looked at before anything is changed."""
    roles = groups = None
    if "roles" in command:
        roles = _listed(command, "roles", "rolename", book.roles, "Role not found")
    if "groups" in command:
        groups = _listed(command, "groups", "groupname", book.groups, "Group not found")
    _texts(client, command)
    if roles is not None:
        client.roles = roles
    if groups is not None:
        for group in book.groups.values():
            group.clients.pop(client.name, None)
        for name, priority in groups.items():
            book.groups[name].clients[client.name] = priority


def _modify_client(book: Book, command: Tree) -> None:
    client = _client(book, command)
    secret = _text(command, "password") if "password" in command else None
    clientid = _maybe(command, "clientid")
    _fill_client(book, client, command)
    if clientid is not None:
        client.client = clientid
    if secret is not None:
        client.set_password(secret)


def _delete_client(book: Book, command: Tree) -> None:
    client = _client(book, command)
    del book.clients[client.name]
    for group in book.groups.values():
        group.clients.pop(client.name, None)


def _able(disabled: bool) -> Command:
    def change(book: Book, command: Tree) -> None:
        _client(book, command).disabled = disabled

    return change


def _set_password(book: Book, command: Tree) -> None:
    client = _client(book, command)
    client.set_password(_text(command, "password"))


def _set_client_id(book: Book, command: Tree) -> None:
    client = _client(book, command)
    client.client = _maybe(command, "clientid") or ""


def _get_client(book: Book, command: Tree) -> Tree:
    return {"client": _whole_client(book, _client(book, command).name)}


def _whole_client(book: Book, name: str) -> Tree:
    groups = book.groups_of(name)
    said = [
        {"groupname": one, **({"priority": groups[one]} if groups[one] != UNSAID else {})}
        for one in ordered(groups)
    ]
    return {**said_client(book.clients[name]), "groups": said}


def _list_clients(book: Book, command: Tree) -> Tree:
    return _page(command, sorted(book.clients), lambda name: _whole_client(book, name), "clients")


def _add_client_role(book: Book, command: Tree) -> None:
    client, role, priority = _client(book, command), _role(book, command), _priority(command)
    if role.name in client.roles:
        raise Wrong("Internal error")  # mosquitto's word for it
    client.roles[role.name] = priority


def _remove_client_role(book: Book, command: Tree) -> None:
    client, role = _client(book, command), _role(book, command)
    client.roles.pop(role.name, None)


# Groups


def _create_group(book: Book, command: Tree) -> None:
    name = _text(command, "groupname")
    if name in book.groups:
        raise Wrong("Group already exists")
    group = Group(name)
    _fill_group(book, group, command)
    book.groups[name] = group


def _fill_group(book: Book, group: Group, command: Tree) -> None:
    roles = clients = None
    if "roles" in command:
        roles = _listed(command, "roles", "rolename", book.roles, "Role not found")
    if "clients" in command:
        clients = _listed(command, "clients", "username", book.clients, "Client not found")
    _texts(group, command)
    group.roles = roles if roles is not None else group.roles
    group.clients = clients if clients is not None else group.clients


def _modify_group(book: Book, command: Tree) -> None:
    _fill_group(book, _group(book, command), command)


def _delete_group(book: Book, command: Tree) -> None:
    group = _group(book, command)
    if book.anonymous == group.name:
        raise Wrong("Group is the anonymous group")
    del book.groups[group.name]


def _whole_group(book: Book, name: str) -> Tree:
    group = book.groups[name]
    members = [{"username": one} for one in ordered(group.clients)]
    return {"groupname": name, **group.texts, "clients": members, "roles": said_roles(group.roles)}


def _get_group(book: Book, command: Tree) -> Tree:
    return {"group": _whole_group(book, _group(book, command).name)}


def _list_groups(book: Book, command: Tree) -> Tree:
    return _page(command, sorted(book.groups), lambda name: _whole_group(book, name), "groups")


def _add_group_client(book: Book, command: Tree) -> None:
    client, group, priority = _client(book, command), _group(book, command), _priority(command)
    if client.name in group.clients:
        raise Wrong("Client is already in this group")
    group.clients[client.name] = priority


def _remove_group_client(book: Book, command: Tree) -> None:
    client, group = _client(book, command), _group(book, command)
    group.clients.pop(client.name, None)


def _add_group_role(book: Book, command: Tree) -> None:
    group, role, priority = _group(book, command), _role(book, command), _priority(command)
    if role.name in group.roles:
        raise Wrong("Group is already in this role")
    group.roles[role.name] = priority


def _remove_group_role(book: Book, command: Tree) -> None:
    group, role = _group(book, command), _role(book, command)
    group.roles.pop(role.name, None)


def _set_anonymous(book: Book, command: Tree) -> None:
    book.anonymous = _group(book, command).name


def _get_anonymous(book: Book, command: Tree) -> Tree:
    return {"group": {"groupname": book.anonymous}}


# Roles


def _create_role(book: Book, command: Tree) -> None:
    name = _text(command, "rolename")
    if name in book.roles:
        raise Wrong("Role already exists")
    role = Role(name)
    _fill_role(role, command)
    book.roles[name] = role


def _fill_role(role: Role, command: Tree) -> None:
    rules = None
    if "acls" in command:
        found = command["acls"]
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise Wrong("Invalid/missing acls")
        rules = [_rule(one) for one in found]
    _texts(role, command)
    role.rules = rules if rules is not None else role.rules


def _modify_role(book: Book, command: Tree) -> None:
    role = book.roles.get(_text(command, "rolename"))
    if role is None:
        raise Wrong("Role does not exist")
    _fill_role(role, command)


def _delete_role(book: Book, command: Tree) -> None:
    role = _role(book, command)
    del book.roles[role.name]
    holders: list[Client | Group] = [*book.clients.values(), *book.groups.values()]
    for holder in holders:
        holder.roles.pop(role.name, None)


def _get_role(book: Book, command: Tree) -> Tree:
    return {"role": said_role(_role(book, command))}


def _list_roles(book: Book, command: Tree) -> Tree:
    return _page(command, sorted(book.roles), lambda name: said_role(book.roles[name]), "roles")


def _rule(command: Tree) -> Rule:
    kind = _kind(command)
    topic = _text(command, "topic")
    if not is_filter(topic):
        raise Wrong("Invalid ACL topic")
    priority = _priority(command) if "priority" in command else 0
    return Rule(kind, topic, priority, command.get("allow") is True)


def _kind(command: Tree) -> str:
    kind = _text(command, "acltype")
    if kind not in KINDS:
        raise Wrong("Unknown acltype")
    return kind


def _add_rule(book: Book, command: Tree) -> None:
    role, rule = _role(book, command), _rule(command)
    if any((one.kind, one.topic) == (rule.kind, rule.topic) for one in role.rules):
        raise Wrong("ACL with this topic already exists")
    role.rules.append(rule)


def _remove_rule(book: Book, command: Tree) -> None:
    role, place = _role(book, command), (_kind(command), _text(command, "topic"))
    kept = [one for one in role.rules if (one.kind, one.topic) != place]
    if len(kept) == len(role.rules):
        raise Wrong("ACL not found")
    role.rules = kept


def _set_defaults(book: Book, command: Tree) -> None:
    """What is not understood is passed over, as mosquitto does."""
    found = command.get("acls")
    if not isinstance(found, list):
        raise Wrong("Missing/invalid actions array")
    for one in found:
        if not isinstance(one, dict) or not isinstance(one.get("allow"), bool):
            continue  # `mosquitto_ctrl` 2.0 leaves `allow` out
        if one.get("acltype") in DEFAULTS:
            book.defaults[one["acltype"]] = one["allow"]


def _get_defaults(book: Book, command: Tree) -> Tree:
    return {"acls": [{"acltype": kind, "allow": book.defaults[kind]} for kind in DEFAULTS]}


COMMANDS: Final[dict[str, Command]] = {
    "createClient": _create_client, "modifyClient": _modify_client,
    "deleteClient": _delete_client, "enableClient": _able(False), "disableClient": _able(True),
    "setClientPassword": _set_password, "setClientId": _set_client_id, "getClient": _get_client,
    "listClients": _list_clients, "addClientRole": _add_client_role,
    "removeClientRole": _remove_client_role, "createGroup": _create_group,
    "modifyGroup": _modify_group, "deleteGroup": _delete_group, "getGroup": _get_group,
    "listGroups": _list_groups, "addGroupClient": _add_group_client,
    "removeGroupClient": _remove_group_client, "addGroupRole": _add_group_role,
    "removeGroupRole": _remove_group_role, "setAnonymousGroup": _set_anonymous,
    "getAnonymousGroup": _get_anonymous, "createRole": _create_role, "modifyRole": _modify_role,
    "deleteRole": _delete_role, "getRole": _get_role, "listRoles": _list_roles,
    "addRoleACL": _add_rule, "removeRoleACL": _remove_rule,
    "setDefaultACLAccess": _set_defaults, "getDefaultACLAccess": _get_defaults,
}  # fmt: skip
_ASKS: Final = frozenset(name for name in COMMANDS if name.startswith(("get", "list")))
