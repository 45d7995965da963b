"""Where settings come from: a file of ours or mosquitto's, the environment, and `key=value`.

    hubbub.toml  <  HUBBUB_JOURNAL__RECORD=none  <  --set journal.record=none

`load` merges them into `Settings`; `manual` says all there are as the text of `hubbub.toml`. The
command line calls both. Never opens a socket or a directory, and never guesses: what it does not
know it refuses, with the next step in the message.
"""

from __future__ import annotations

import json
import logging
import re
import textwrap
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Struct

from hubbub.config import exposed, mosquitto_conf, mosquitto_db
from hubbub.config.settings import Bridge, Listener, Settings, networks, parse_address
from hubbub.errors import SettingError, without_user
from hubbub.spelling import CLOSE, meant

log = logging.getLogger("hubbub.config")


_PREFIX: Final = "HUBBUB_"
# What container platforms put there for a service that is named hubbub.
_NOT_OURS: Final = re.compile(r"HUBBUB_(SERVICE_|PORT)")
# Of clients, of the build, and of Spark.
_ELSEWHERE: Final = (
    "HUBBUB_TOKEN", "HUBBUB_URL", "HUBBUB_PROFILE", "HUBBUB_COMPILE", "HUBBUB_CACHE",
)  # fmt: skip
# By the last part of their names.
_SECRETS: Final = ("password", "token")


def load(
    file: str | Path | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
    starts: bool = False,
) -> Settings:
    """The settings of a file, with `key=value` overrides on top (the last one wins).

    `.toml` is ours, every other file is a mosquitto.conf. Of the `environment` what begins with
    HUBBUB_ comes between them: `HUBBUB_JOURNAL__RECORD` is journal.record. A hub that `starts` with
    them must not miss what its mosquitto left.

    SettingError says which setting, from where, what was expected and what to do.
    """
    tree, database = _read(Path(file)) if file is not None else ({}, None)
    _refuse_unknown(tree, Settings, "", str(file))
    settings = _convert(tree, str(file))
    for name, value in sorted(environment.items()):
        key = _key_of(name)
        if key:
            _override(tree, f"{key}={value}", name)
            settings = _convert(tree, name)
    for override in overrides:
        _override(tree, override, f"--set {override}")
        settings = _convert(tree, f"--set {override}")
    refuse_open_doors(settings)
    complaint = exposed.of_configuration(settings, file) if file is not None else ""
    if complaint:
        log.warning(complaint)
    if starts and database is not None:
        mosquitto_db.refuse_to_lose(database, Path(settings.data))
    return settings


def _read(file: Path) -> tuple[dict[str, Any], Path | None]:
    """What it says, and the state that its mosquitto left, None without."""
    if file.suffix != ".toml":
        tree, notes, database = mosquitto_conf.read(file)
        for note in notes:
            log.warning(note)
        return tree, database
    try:
        return tomllib.loads(file.read_text("utf-8")), None
    except OSError as error:
        raise SettingError(f"cannot read the configuration {file}: {error.strerror}") from None
    except ValueError as error:
        raise SettingError(f"{file} is not TOML: {error}") from None


def _convert(tree: Mapping[str, Any], origin: str) -> Settings:
    try:
        return msgspec.convert(tree, Settings)
    except msgspec.ValidationError as error:
        raise SettingError(f"{origin}: {_in_our_words(str(error), tree)}") from None


def _in_our_words(error: str, tree: Mapping[str, Any]) -> str:
    """Turn msgspec's "… - at `$.journal.record`" into a sentence that names the setting."""
    complaint, _, path = error.partition(" - at `$.")
    path = path.rstrip("`")
    complaint = complaint.replace("Expected", "expected").replace("`", "")
    value: Any = tree
    for part in re.findall(r"[^.\[\]]+", path):
        value = value[int(part)] if isinstance(value, list | tuple) else value[part]
    allowed = _choices(path)
    if allowed:
        complaint = "expected one of " + ", ".join(allowed)
    name = path or "the file"
    shown = json.dumps(_without_secrets(value, path.rpartition(".")[2]), default=str)
    return f"{name} = {shown} cannot be used: {complaint}"


def _without_secrets(value: Any, name: str) -> Any:
    """The value as logs and the journal may show it."""
    if name in _SECRETS:
        return "…"
    if isinstance(value, Mapping):
        return {key: _without_secrets(inner, key) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_secrets(inner, name) for inner in value]
    return without_user(value) if isinstance(value, str) and "://" in value else value


def _choices(path: str) -> list[str]:
    kind = dict(_leaves()).get(path)
    return list(typing.get_args(kind.type)) if kind and _is_choice(kind.type) else []


def _is_choice(kind: Any) -> bool:
    return typing.get_origin(kind) is Literal


def _refuse_unknown(tree: Mapping[str, Any], kind: type[Struct], prefix: str, origin: str) -> None:
    """Refuse names that are no settings before types are looked at: a typo is the likeliest."""
    sections = {f.name: _section(f.type) for f in msgspec.structs.fields(kind)}
    for name, value in tree.items():
        if name not in sections:
            beside = meant(name, sections, like=CLOSE, before=prefix)
            raise SettingError(f"{origin}: {_no_such(prefix + name, beside)}")
        section = sections[name]
        for item in value if isinstance(value, list) else [value]:
            if section is not None and isinstance(item, Mapping):
                _refuse_unknown(item, section, f"{prefix}{name}.", origin)


def _section(kind: Any) -> type[Struct] | None:
    """The struct inside `Struct`, `tuple[Struct, ...]` or either of them annotated."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        return kind
    for inner in typing.get_args(kind):
        if (found := _section(inner)) is not None:
            return found
    return None


def _no_such(name: str, beside: str = "") -> str:
    """`beside`: what it is likest of those that could stand in the same place."""
    known, otherwise = (key for key, _ in _leaves()), "`hubbub config` prints all there are"
    return f"there is no setting {name}; {beside or meant(name, known, otherwise)}"


def _key_of(name: str) -> str:
    """The setting that a variable of the environment means, "" if it is for somebody else."""
    if not name.startswith(_PREFIX) or name in _ELSEWHERE or _NOT_OURS.match(name):
        return ""
    key = name[len(_PREFIX) :].lower().replace("__", ".")
    if key not in dict(_leaves()):
        log.warning("%s in the environment is not looked at: %s", name, _no_such(key))
        return ""
    return key


def _override(tree: dict[str, Any], override: str, origin: str) -> None:
    """Put `key=value` into the tree, the value read as the setting's type says."""
    key, equals, text = (part.strip() for part in override.partition("="))
    if not equals:
        raise SettingError(f"{origin}: expected key=value, for example journal.record=none")
    leaf = dict(_leaves()).get(key)
    if leaf is None:
        raise SettingError(f"{origin}: {_no_such(key)}")
    *sections, name = key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[name] = _parse(leaf.type, text)


def _parse(kind: Any, text: str) -> Any:
    """A value as TOML says it; words need no quotes and lists no brackets."""
    if kind is str or _is_choice(kind):
        return text.strip("\"'")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        value = text  # the conversion then says what it should have been
    if typing.get_origin(kind) is tuple and not isinstance(value, list):
        text = value if isinstance(value, str) else text  # a number may be a word: listen=1883
        return [item.strip() for item in text.split(",") if item.strip()]
    return value


def refuse_open_doors(settings: Settings) -> None:
    """SettingError for a public address without credentials that nobody said is meant.

    One that lets nobody in is meant where it is said: a hub that has bridges only, for example.
    """
    settings.topic_durability()
    if complaint := settings.cluster.complaint():
        raise SettingError(complaint)
    closed = {
        one.address: one.allow_anonymous
        for one in settings.listener
        if one.allow_anonymous is not None
    }
    for listener in settings.listeners():
        complaint = listener.tls.complaint() or listener.jwt.complaint()
        if complaint:
            raise SettingError(f"{listener.address}: {complaint}")
        if networks(listener.proxies) and parse_address(listener.address).path:
            raise SettingError(f"{listener.address}: proxies come over a network, not to a file")
        if settings.dynamic_security:
            complaint = _beside_dynamic(listener)
            if complaint:
                raise SettingError(f"{listener.address}: {complaint}")
        if listener.mount_point and listener.protocols != ("mqtt",):
            raise SettingError(
                f"{listener.address}: mount_point is for MQTT alone: add protocols = [\"mqtt\"]"
            )
        if "+" in listener.mount_point or "#" in listener.mount_point:
            raise SettingError(f"{listener.address}: mount_point is a name, without + and #")
        named = listener.checks or listener.tls.names or settings.dynamic_security
        if listener.allow_anonymous or named:
            continue
        if closed.get(listener.address, settings.allow_anonymous) is False:
            log.warning(
                "%s refuses everybody: allow_anonymous is false, and there are no credentials to "
                "check; a password_file lets in whom it names", listener.address,
            )  # fmt: skip
            continue
        raise SettingError(
            f"refusing to listen on {listener.address} without credentials: everybody who "
            "reaches it could read and publish. Make a password file with `hubbub passwd add "
            "FILE USER` and add --set password_file=FILE. If everybody is meant, say "
            "allow_anonymous = true in the configuration or --set allow_anonymous=true"
        )


def _beside_dynamic(listener: Listener) -> str:
    """What does not go with dynamic_security, which says itself who may what; "" if all does."""
    beside = {
        "password_file": listener.password_file, "acl_file": listener.acl_file,
        "jwt.acl_claim": listener.jwt.acl_claim,
    }  # fmt: skip
    given = next((name for name, value in beside.items() if value), "")
    return f"{given} and dynamic_security say both who may what: leave one out" if given else ""


class _Leaf(NamedTuple):
    type: Any
    default: Any
    reason: str


def _leaves(kind: type[Struct] = Settings, prefix: str = "") -> Iterator[tuple[str, _Leaf]]:
    """Every setting by its dotted name, in the order of declaration. Tables are left out."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        bare, reason = _unwrap(hints[field.name])
        section = _section(bare)
        if section is None:
            yield prefix + field.name, _Leaf(bare, field.default, reason)
        elif bare is section:
            yield from _leaves(section, f"{prefix}{field.name}.")


def _unwrap(hint: Any) -> tuple[Any, str]:
    """The type without its annotations, and the reason among them."""
    reason = ""
    while typing.get_origin(hint) is Annotated:
        reason = next((m.description for m in hint.__metadata__ if m.description), reason)
        hint = hint.__origin__
    return hint, reason


def offered() -> dict[str, tuple[str, ...]]:
    """Every setting by its dotted name, and what to offer for it: each choice, or the default."""
    return {name: _values(leaf) for name, leaf in _leaves()}


def _values(leaf: _Leaf) -> tuple[str, ...]:
    if _is_choice(leaf.type):
        return typing.get_args(leaf.type)
    if leaf.type is bool:
        return "true", "false"
    if isinstance(leaf.default, tuple):
        return (",".join(str(one) for one in leaf.default),)
    return ("" if leaf.default in (None, msgspec.NODEFAULT) else str(leaf.default),)


_HEAD = """\
# Every setting of Hubbub: why it is there and its default, commented out.
# Use a copy with `hubbub serve --config FILE`, or `--set key=value` for one setting, or the
# environment: HUBBUB_JOURNAL__RECORD=none is journal.record. The environment wins over the file,
# `--set` over both.
# This text is what `hubbub config` prints.
"""


def manual() -> str:
    """The text of `hubbub.toml`: every setting with its reason and default, commented out."""
    parts = [_HEAD]
    plain = [(name, leaf) for name, leaf in _leaves() if "." not in name]
    parts += [_entry(name, leaf) for name, leaf in plain]
    for field in msgspec.structs.fields(Settings):
        if isinstance(field.type, type) and issubclass(field.type, Struct):
            entries = [_entry(name, leaf) for name, leaf in _leaves(field.type)]
            parts.append("\n".join((f"# {field.type.__doc__}\n[{field.name}]\n", *entries)))
    hints = typing.get_type_hints(Settings, include_extras=True)
    for table, kind in (("listener", Listener), ("bridge", Bridge)):
        reason = _unwrap(hints[table])[1]
        entries = [
            _entry(name, leaf, _EXAMPLES.get(f"{table}.{name}", "")) for name, leaf in _leaves(kind)
        ]
        parts.append("\n".join((f"{_comment(reason)}\n# [[{table}]]\n", *entries)))
    return "\n".join(parts)


# What a setting without default looks like.
_EXAMPLES: Final = {
    "listener.address": '"127.0.0.1:8883"',
    "bridge.name": '"plant"',
    "bridge.addresses": '["broker.example.org:1883"]',
    "bridge.topics": '["sensors/# out 1", "orders/# in 1 \'\' plant7/"]',
}


def _entry(name: str, leaf: _Leaf, example: str = "") -> str:
    value = example if leaf.default is msgspec.NODEFAULT else _toml(leaf.default)
    unset = ". Not set by default" if leaf.default is None else ""
    return f"{_comment(leaf.reason.rstrip('.') + unset)}\n# {name} = {value}\n"


def _comment(text: str) -> str:
    sentence = text[0].upper() + text[1:].rstrip(".") + "."
    return textwrap.fill(sentence, 96, initial_indent="# ", subsequent_indent="# ")


def _toml(value: Any) -> str:
    if value is None:
        return "true"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:_}"
    return json.dumps(list(value) if isinstance(value, tuple) else value)
