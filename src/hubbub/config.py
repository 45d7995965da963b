"""Every setting of the hub, declared once: its name, type, default and reason.

`load` reads a TOML file and `key=value` overrides into `Settings`; `manual` says all of them as
the text of `hubbub.toml`. The command line calls both, the server and the hub take `Settings`.
Never opens a socket or a directory, and never guesses: what it does not know it refuses, with
the next step in the message.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import re
import shlex
import textwrap
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from hubbub import mosquitto_conf
from hubbub.errors import SettingError

log = logging.getLogger("hubbub.config")

DEFAULT_DATA: Final = "./hubbub-data"
DEFAULT_LISTEN: Final = ("127.0.0.1:1883", "127.0.0.1:8080")

Count = Annotated[int, Meta(ge=1)]
CountOrNone = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]


def _because(reason: str) -> Any:
    return Meta(description=reason)


class Tls(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """TLS on the same port as everything else: the first byte of a connection tells."""

    certificate: Annotated[
        str, _because("the hub's own, with its chain, in a PEM file; without one there is no TLS")
    ] = ""
    key: Annotated[
        str, _because("its private key without a pass phrase; empty means in the same file")
    ] = ""
    only: Annotated[
        bool, _because("refuse connections that do not use TLS, so that no password is in clear")
    ] = False
    client_ca: Annotated[
        str, _because("a file or directory of authorities; certificates of clients are theirs")
    ] = ""
    require_certificate: Annotated[
        bool, _because("refuse clients that have no certificate of these authorities")
    ] = False
    identity: Annotated[
        Literal["none", "common_name", "subject"],
        _because(
            "who has a certificate needs no password, and its user name is what that says: "
            '"common_name", or the whole "subject"'
        ),
    ] = "none"
    crl: Annotated[
        str, _because("a PEM file of revocation lists, one of each of these authorities")
    ] = ""
    version: Annotated[
        Literal["1.2", "1.3"], _because("the oldest version; 1.2 is what many devices have")
    ] = "1.2"
    ciphers: Annotated[
        str, _because("OpenSSL's list for 1.2, for those who must; empty takes OpenSSL's own")
    ] = ""

    def complaint(self) -> str:
        """What does not fit together, "" if all does."""
        if not self.certificate:
            unused = [f for f in self.__struct_fields__ if getattr(self, f) != getattr(Tls(), f)]
            return f"tls.{unused[0]} needs tls.certificate" if unused else ""
        if not self.client_ca:
            unused = [
                name
                for name in ("require_certificate", "identity", "crl")
                if getattr(self, name) != getattr(Tls(), name)
            ]
            return f"tls.{unused[0]} needs tls.client_ca" if unused else ""
        return ""


class Listener(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One address and what it speaks: "ADDR:PORT", "[IPV6]:PORT" or "unix:PATH"."""

    address: Annotated[
        str, _because('where to listen; port 0 takes a free one, "unix:PATH" is a Unix socket')
    ]
    mode: Annotated[
        Annotated[str, Meta(pattern="^[0-7]{3,4}$")],
        _because("who may use a Unix socket, as file permissions in octal"),
    ] = "660"
    protocols: Annotated[
        tuple[str, ...],
        _because(
            'the only protocols spoken here, "http" for the web pages; empty speaks all of them'
        ),
    ] = ()
    allow_anonymous: Annotated[
        bool | None, _because("as the setting of that name above, for this listener alone")
    ] = None
    password_file: Annotated[
        str, _because("as the setting of that name above, for this listener alone")
    ] = ""
    acl_file: Annotated[
        str, _because("as the setting of that name above, for this listener alone")
    ] = ""
    websocket: Annotated[
        Literal["any", "only", "never"],
        _because(
            "whether connections of these protocols are WebSockets; web pages are not concerned"
        ),
    ] = "any"
    client_prefixes: Annotated[
        tuple[str, ...], _because("only client ids that begin so are let in; empty lets all in")
    ] = ()
    require_client_id: Annotated[
        bool, _because("refuse clients that leave the choice of their client id to the hub")
    ] = False
    max_connections: Annotated[
        CountOrNone, _because("connections at one time, one more is closed; 0 sets no bound here")
    ] = 0
    origins: Annotated[
        tuple[str, ...],
        _because("web pages of these origins may use this listener, beside its own"),
    ] = ()
    tls: Tls = Tls()

    @property
    def checks(self) -> bool:
        """Whether it can tell one client from another, for lack of which none may be public."""
        return bool(self.password_file) or self.tls.require_certificate


class Bridge(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another broker that this hub connects to, and the topics that cross."""

    name: Annotated[str, _because("what the journal and `$SYS` call it; never change it")]
    addresses: Annotated[
        tuple[str, ...], _because("where the broker is, HOST:PORT; several are tried in turn")
    ]
    topics: Annotated[
        tuple[str, ...],
        _because(
            'what crosses: "FILTER out|in|both QOS LOCAL-PREFIX REMOTE-PREFIX", as in '
            'mosquitto.conf; all but the filter may be left out, "" is no prefix'
        ),
    ]
    version: Annotated[
        Literal["5.0", "3.1.1"],
        _because("the MQTT that is tried first; only 5.0 always keeps what crossed from returning"),
    ] = "5.0"
    client_id: Annotated[str, _because("who this hub is over there; empty means HOSTNAME.NAME")] = (
        ""
    )
    user: Annotated[str, _because("the user name over there; empty sends none")] = ""
    password: Annotated[str, _because("the password over there")] = ""
    keep_alive: Annotated[
        Annotated[int, Meta(ge=5, le=65_535)],
        _because("seconds; a broker that is silent for one and a half of it is given up"),
    ] = 60
    clean: Annotated[
        bool, _because("the broker forgets the session, and what it has for us, when it is away")
    ] = False
    retry_seconds: Annotated[
        Annotated[float, Meta(ge=1)],
        _because("the longest wait between two attempts; the first wait is a second"),
    ] = 60.0
    tls: Annotated[bool, _because("whether TLS protects the connection")] = False
    ca: Annotated[
        str, _because("a file or directory of trusted authorities; empty means the system's")
    ] = ""
    certificate: Annotated[str, _because("the hub's own certificate for it, a PEM file")] = ""
    key: Annotated[str, _because("its private key; empty means in the same file")] = ""
    check_name: Annotated[
        bool, _because("whether the certificate over there must be for that host name")
    ] = True


class Journal(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is recorded, how safely, and for how long."""

    record: Annotated[
        Literal["all", "durable", "none"],
        _because(
            '"all": every message becomes a row. "durable": only what an acknowledgement promises. '
            '"none": nothing is kept, and nothing survives the process.'
        ),
    ] = "all"
    durability: Annotated[
        Literal["disk", "os", "none"],
        _because(
            '"disk": an acknowledged message survives power loss. "os": it survives a crash of '
            'the process, not of the machine. "none": memory only.'
        ),
    ] = "disk"
    exclude: Annotated[
        tuple[str, ...],
        _because("messages whose topic matches one of these filters are never recorded"),
    ] = ()
    segment_bytes: Annotated[
        Annotated[int, Meta(ge=64 * 1024)],
        _because("a segment of this size is closed, folded into a snapshot and compressed"),
    ] = 64 * 1024 * 1024
    segment_seconds: Annotated[
        Annotated[float, Meta(ge=1)],
        _because("a segment of this age too; it bounds what a start-up has to read"),
    ] = 3600.0
    retain_seconds: Annotated[
        Seconds, _because("rows older than this may go (7 days); 0 sets no bound by age")
    ] = 7 * 86_400.0
    retain_bytes: Annotated[
        CountOrNone,
        _because("the oldest segments go when all are larger; 0 means a fifth of the disk"),
    ] = 0


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of every connection, and of what waits for none."""

    message_bytes: Annotated[
        Count, _because("the largest payload taken from a client: people queue whole files")
    ] = 64 * 1024 * 1024
    delayed_messages: Annotated[
        CountOrNone,
        _because("messages that wait under `$delayed/`; one more is dropped and counted"),
    ] = 100_000
    retained_messages: Annotated[
        CountOrNone,
        _because("retained messages; one more is not kept. 0 keeps none and tells MQTT clients so"),
    ] = 1_000_000


class Session(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of what one client may leave unacknowledged."""

    inflight: Annotated[
        Annotated[int, Meta(ge=1, le=65_535)],
        _because("deliveries on their way to one client: what clients count on"),
    ] = 20
    inflight_bytes: Annotated[
        CountOrNone,
        _because("the next delivery waits while so many bytes are on their way; 0 sets no bound"),
    ] = 0
    backlog_messages: Annotated[
        CountOrNone,
        _because("messages kept for one client: a device offline for a day at one a second"),
    ] = 100_000
    backlog_bytes: Annotated[
        CountOrNone,
        _because(
            "bytes of payload kept for one client: so many of 10 KiB. What is over either bound is "
            "dropped and counted; one message may wait whatever its size"
        ),
    ] = 1024 * 1024 * 1024


class Smq(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """SMQ only."""

    max_topics: Annotated[
        Annotated[int, Meta(ge=1, le=2_000_000)],
        _because("durable topic ids; one more Create is refused with status 1"),
    ] = 1_000_000
    retained: Annotated[
        bool, _because("a new subscription gets the retained message right after its Suback")
    ] = True
    connect_seconds: Annotated[
        Annotated[float, Meta(gt=0)],
        _because("until a client has sent its Connect; four is what clients are used to"),
    ] = 4.0


class Mqtt(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """MQTT only."""

    qos2_serial: Annotated[
        bool,
        _because(
            "toward clients of 3.1 and 3.1.1 one QoS 2 handshake at a time, nothing between: "
            "some lose count otherwise"
        ),
    ] = True
    maximum_qos: Annotated[
        Annotated[int, Meta(ge=0, le=2)],
        _because(
            "the highest QoS that clients may publish or subscribe with; those of 5.0 are told it"
        ),
    ] = 2
    max_keepalive: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)],
        _because(
            "clients of 5.0 that ask for a longer keep alive, or for none, are told this one, in "
            "seconds: who is gone is noticed in 1.5 times of it. 0 leaves it to them"
        ),
    ] = 60
    max_session_expiry: Annotated[
        Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)],
        _because(
            "the longest time in seconds that a session outlives its connection; the default is "
            "what 5.0 says for ever with"
        ),
    ] = 0xFFFF_FFFF
    receive_maximum: Annotated[
        Annotated[int, Meta(ge=1, le=65_535)],
        _because(
            "publishes of QoS 1 and 2 that a client of 5.0 may have unanswered: enough for a busy "
            "one while the disk works; one more ends its connection with 0x93"
        ),
    ] = 1_000
    topic_alias_maximum: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)],
        _because("topic aliases that a client of 5.0 may use; each may be a name of 64 KiB"),
    ] = 100
    server_reference: Annotated[
        str,
        _because(
            "where clients shall go instead of here: a host name or host:port. Those of 5.0 are "
            "told so, the others that this server is not available. Empty takes them in"
        ),
    ] = ""
    server_moved: Annotated[
        bool, _because("whether they shall remember it: 0x9D, server moved, instead of 0x9C")
    ] = False


class Queue(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Queues of message-switch and `$queue/…`."""

    max_messages: Annotated[
        Count, _because("unacknowledged messages in one queue; one more is refused with 507")
    ] = 1_000_000
    max_bytes: Annotated[
        Count, _because("of their payloads; a queue that holds so many takes no more")
    ] = 4 * 1024 * 1024 * 1024
    socket: Annotated[
        str,
        _because(
            "a Unix socket for message-switch alone, as its own `--path`; a listener with the "
            'address "unix:PATH" has one for other protocols'
        ),
    ] = ""


class Rpc(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Calls through `$queue/…` and response topics, where callers and services differ."""

    reply_ttl: Annotated[
        Seconds,
        _because("seconds in which a request may be answered by its reply id; later is too late"),
    ] = 60.0
    max_open: Annotated[
        Count, _because("requests that have a reply id; one more waits in its queue")
    ] = 100_000


class Sys(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the hub says about itself under `$SYS/`."""

    interval: Annotated[
        Seconds, _because("seconds from one reading to the next; 0 says nothing at all")
    ] = 10.0


class Log(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the process says on stderr."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        _because("the least that is worth a line: debug, info, warning or error"),
    ] = "info"


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings. `Settings()` is the default hub: loopback, everything recorded, on disk."""

    listen: Annotated[
        tuple[str, ...],
        _because("addresses that speak everything; 1883 and 8080 are where clients look first"),
    ] = DEFAULT_LISTEN
    data: Annotated[
        str, _because("the directory of the journal, relative to where the hub is started")
    ] = DEFAULT_DATA
    allow_anonymous: Annotated[
        bool | None,
        _because(
            "whether clients without a user name and password are let in. Without this setting "
            "they are not if there is a password file, and else on loopback only: a public "
            "address without credentials is refused until this says what is meant."
        ),
    ] = None
    password_file: Annotated[
        str, _because("the users, as `hubbub passwd` writes them; mosquitto's files will do")
    ] = ""
    acl_file: Annotated[
        str,
        _because("what users may publish and receive, in mosquitto's format; empty allows all"),
    ] = ""
    listener: Annotated[
        tuple[Listener, ...],
        _because(
            "more addresses, each with its own rules. An address that is in `listen` too is "
            "taken from here."
        ),
    ] = ()
    bridge: Annotated[
        tuple[Bridge, ...],
        _because(
            "other brokers. What goes out with QoS 1 or 2 waits in the journal while a broker "
            "cannot be reached."
        ),
    ] = ()
    tls: Tls = Tls()
    journal: Journal = Journal()
    limits: Limits = Limits()
    session: Session = Session()
    smq: Smq = Smq()
    mqtt: Mqtt = Mqtt()
    queue: Queue = Queue()
    rpc: Rpc = Rpc()
    sys: Sys = Sys()
    log: Log = Log()

    def listeners(self) -> list[Listener]:
        """Every listener with its rules filled in, in the order they are to be opened."""
        given = {listener.address: listener for listener in self.listener}
        plain = [Listener(address=a) for a in self.listen if a not in given]
        if self.queue.socket:
            plain.append(Listener(address=UNIX + self.queue.socket, protocols=("switch",)))
        return [self._filled_in(listener) for listener in (*plain, *self.listener)]

    def _filled_in(self, listener: Listener) -> Listener:
        filled = msgspec.structs.replace(
            listener,
            password_file=listener.password_file or self.password_file,
            acl_file=listener.acl_file or self.acl_file,
            tls=listener.tls if listener.tls != Tls() else self.tls,
        )
        allow = listener.allow_anonymous
        if allow is None:
            allow = self.allow_anonymous
        if allow is None and filled.password_file:
            allow = False
        if allow is None:
            allow = filled.checks or parse_address(listener.address).loopback
        return msgspec.structs.replace(filled, allow_anonymous=allow)


class BridgeTopic(NamedTuple):
    """What crosses a bridge: local names begin with `local`, names over there with `remote`."""

    filter: str
    out: bool
    into: bool
    qos: int
    local: str
    remote: str


_DIRECTIONS: Final = {"out": (True, False), "in": (False, True), "both": (True, True)}


def parse_bridge_topic(text: str) -> BridgeTopic:
    """One of `bridge.topics`; SettingError if it is not as documented."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise SettingError(f"bridge.topics: {text!r}: {error}") from None
    topic, direction, qos, local, remote = (words + ["", "out", "0", "", ""][len(words) :])[:5]
    if not 1 <= len(words) <= 5 or direction not in _DIRECTIONS or qos not in ("0", "1", "2"):
        raise SettingError(
            f'bridge.topics: {text!r}: expected "FILTER out|in|both QOS LOCAL-PREFIX '
            'REMOTE-PREFIX", for example "sensors/# out 1"'
        )
    return BridgeTopic(topic, *_DIRECTIONS[direction], int(qos), local, remote)


UNIX: Final = "unix:"  # how the address of a Unix socket begins


class Address(NamedTuple):
    """A host and a port to listen on, port 0 takes a free one; or "unix:PATH", without a port."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost" or self.path:
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def path(self) -> str:
        """Of its socket, "" if it is not a Unix one."""
        return self.host.removeprefix(UNIX) if self.host.startswith(UNIX) else ""

    def __str__(self) -> str:
        if self.path:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^:\[\]]+)):(?P<port>\d{1,5})")


def parse_address(text: str) -> Address:
    """ "ADDR:PORT", "[IPV6]:PORT" or "unix:PATH"; SettingError if it is none of them."""
    if text.startswith(UNIX) and len(text) > len(UNIX):
        return Address(text, 0)
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65_535:
        raise SettingError(
            f"cannot listen on {text!r}: expected ADDR:PORT, for example 127.0.0.1:1883 or "
            "[::1]:0, or unix:PATH"
        )
    return Address(match["v6"] or match["host"], int(match["port"]))


def load(file: str | Path | None = None, overrides: Sequence[str] = ()) -> Settings:
    """The settings of a file, with `key=value` overrides on top (the last one wins).

    `.toml` is ours, every other file is a mosquitto.conf.

    SettingError says which setting, from where, what was expected and what to do.
    """
    tree = _read(Path(file)) if file is not None else {}
    _refuse_unknown(tree, Settings, "", str(file))
    settings = _convert(tree, str(file))
    for override in overrides:
        _override(tree, override)
        settings = _convert(tree, f"--set {override}")
    refuse_open_doors(settings)
    return settings


def _read(file: Path) -> dict[str, Any]:
    if file.suffix != ".toml":
        tree, notes = mosquitto_conf.read(file)
        for note in notes:
            log.warning(note)
        return tree
    try:
        return tomllib.loads(file.read_text("utf-8"))
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
    return f"{name} = {json.dumps(value, default=str)} cannot be used: {complaint}"


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
            raise SettingError(f"{origin}: {_no_such(prefix + name)}")
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


def _no_such(name: str) -> str:
    near = get_close_matches(name, [key for key, _ in _leaves()], 1, 0.5)
    hint = f"did you mean {near[0]}?" if near else "`hubbub config` prints all there are"
    return f"there is no setting {name}; {hint}"


def _override(tree: dict[str, Any], override: str) -> None:
    """Put `key=value` into the tree, the value read as the setting's type says."""
    key, equals, text = (part.strip() for part in override.partition("="))
    if not equals:
        raise SettingError(f"--set {override}: expected key=value, for example journal.record=none")
    leaf = dict(_leaves()).get(key)
    if leaf is None:
        raise SettingError(f"--set {override}: {_no_such(key)}")
    *sections, name = key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[name] = _parse(leaf.type, text)


def _parse(kind: Any, text: str) -> Any:
    """A value as TOML says it; words need no quotes and lists no brackets."""
    if kind is str or _is_choice(kind):
        return text.strip("\"'")
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        if typing.get_origin(kind) is tuple:
            return [item.strip() for item in text.split(",") if item.strip()]
        return text  # the conversion then says what it should have been


def refuse_open_doors(settings: Settings) -> None:
    """SettingError for a public address without credentials that nobody said is meant."""
    for listener in settings.listeners():
        complaint = listener.tls.complaint()
        if complaint:
            raise SettingError(f"{listener.address}: {complaint}")
        if listener.allow_anonymous or listener.checks:
            continue
        if parse_address(listener.address).loopback:
            raise SettingError(
                f"allow_anonymous = false, but there are no credentials to check: nobody could "
                f"connect to {listener.address}. Add password_file, or leave the setting out"
            )
        raise SettingError(
            f"refusing to listen on {listener.address} without credentials: everybody who "
            "reaches it could read and publish. Make a password file with `hubbub passwd add "
            "FILE USER` and add --set password_file=FILE. If everybody is meant, say "
            "allow_anonymous = true in the configuration or --set allow_anonymous=true"
        )


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


_HEAD = """\
# Every setting of Hubbub: why it is there and its default, commented out.
# Use a copy with `hubbub serve --config FILE`, or `--set key=value` for one setting.
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
