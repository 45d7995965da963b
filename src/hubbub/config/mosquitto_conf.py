"""mosquitto.conf, read as it is: its options become our settings, or are named with their line.

    persistence_location /var/lib/mosquitto/     -> data
    listener 8883                                -> [[listener]], which speaks MQTT only
    certfile /etc/mosquitto/server.pem           ->   its tls.certificate
    per_listener_settings true                   -> who may connect is said by each listener
    connection upstream                          -> [[bridge]]

An option belongs to the hub, to the listener above it or to the bridge above it. `sources.load`
calls `read` and takes the tree it makes like that of a TOML file. What each option becomes stands
in the tables below: settings, what makes no difference here, what cannot be done (a note; the
hub starts), and what would change who may do what (an error; it does not start).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from hubbub.config.settings import Bridge, Listener, Settings, parse_bridge_topic
from hubbub.errors import SettingError
from hubbub.spelling import meant

_UNLIMITED: Final = 1_000_000_000  # where 0 means "no bound" there and "nothing" here
_SECONDS: Final = {"h": 3600, "d": 86_400, "w": 7 * 86_400, "m": 30 * 86_400, "y": 365 * 86_400}
_INCLUDES: Final = 10  # include_dir within include_dir


class Reading(NamedTuple):
    """Settings as TOML would say them, and a line about each option that has no effect.

    `database`: where that mosquitto kept its state, None if nowhere.
    """

    tree: dict[str, Any]
    notes: list[str]
    database: Path | None


class _Line(NamedTuple):
    place: str
    option: str
    value: str

    def trouble(self, text: str) -> SettingError:
        """An error in the words of the file."""
        # also of an option that is mistyped; logs and the journal have no secrets
        secret = _SECRET.search(self.option) is not None
        said = f"{self.option} {'…' if secret else self.value}".strip()
        return SettingError(f"{self.place}: {said}: {text}")


class _Setting(NamedTuple):
    """Where a value goes, and how it is read; None from `read` leaves the setting alone."""

    path: str
    read: Callable[[_Line], Any]


# Values


def _text(line: _Line) -> str:
    if not line.value:
        raise line.trouble("expected a value")
    return line.value


def _truth(line: _Line) -> bool:
    if line.value not in ("true", "false", "1", "0"):
        raise line.trouble("expected true or false")
    return line.value in ("true", "1")


def _not(line: _Line) -> bool:
    return not _truth(line)


def _whole(line: _Line) -> int:
    try:
        return int(line.value)
    except ValueError:
        raise line.trouble("expected a whole number") from None


def _or_unlimited(line: _Line) -> int:
    return _whole(line) or _UNLIMITED


def _bound(line: _Line) -> int | None:
    """0 is "no bound" there; here it leaves the setting alone."""
    return _whole(line) or None


def _span(line: _Line) -> int:
    """A number and a unit, in seconds: 2h, 14d, 3w, 6m, 1y."""
    number, unit = line.value[:-1], line.value[-1:]
    if not number.isdecimal() or unit not in _SECONDS:
        raise line.trouble(f"expected a number and one of {', '.join(_SECONDS)}")
    return int(number) * _SECONDS[unit]


def _window(line: _Line) -> int:
    return min(_whole(line) or 65_535, 65_535)


def _or_none(line: _Line) -> int:
    """-1 is "no bound" there, 0 here."""
    return max(_whole(line), 0)


def _words(line: _Line) -> list[str]:
    return _text(line).split()


def _last_number(line: _Line) -> float:
    """`restart_timeout BASE CAP` or one number: the longest wait."""
    return max(_whole(line._replace(value=word)) for word in _words(line))


def _one_of(choices: dict[str, Any]) -> Callable[[_Line], Any]:
    def read(line: _Line) -> Any:
        if line.value not in choices:
            raise line.trouble(f"expected one of {', '.join(choices)}")
        return choices[line.value]

    return read


_KINDS: Final[dict[type[msgspec.Struct], dict[str, Any]]] = {
    Settings: {},
    Listener: {"address": "localhost:0"},
    Bridge: {"name": "", "addresses": [], "topics": []},
}


def _check(kind: type[msgspec.Struct], path: list[str], value: Any, line: _Line) -> None:
    """Whether the setting takes the value; said here, where the line is known."""
    for name in reversed(path):
        value = {name: value}
    try:
        msgspec.convert({**_KINDS[kind], **value}, kind)
    except msgspec.ValidationError as error:
        complaint = str(error).partition(" - at")[0].replace("Expected", "expected")
        raise line.trouble(complaint.replace("`", "")) from None


def _none_if_false(line: _Line) -> int | None:
    return None if _truth(line) else 0


def _if_true(value: str) -> Callable[[_Line], str | None]:
    return lambda line: value if _truth(line) else None


_KEPT: Final = {"true": "all", "1": "all", "false": "none", "0": "none"}

# The hub's settings.
_HUB: Final[dict[str, _Setting]] = {
    "persistence": _Setting("journal.record", _one_of(_KEPT)),
    "persistence_location": _Setting("data", _text),
    "message_size_limit": _Setting("mqtt.payload_bytes", _whole),
    "max_packet_size": _Setting("limits.message_bytes", _bound),
    "max_topic_alias": _Setting("mqtt.topic_alias_maximum", _whole),
    "max_topic_alias_broker": _Setting("mqtt.topic_aliases_sent", _whole),
    "persistent_client_expiration": _Setting("mqtt.max_session_expiry", _span),
    "max_inflight_messages": _Setting("session.inflight", _window),
    "max_queued_messages": _Setting("session.backlog_messages", _or_unlimited),
    "max_queued_bytes": _Setting("session.backlog_bytes", _or_unlimited),
    "max_inflight_bytes": _Setting("session.inflight_bytes", _whole),
    "upgrade_outgoing_qos": _Setting("mqtt.upgrade_qos", _truth),
    "retain_available": _Setting("limits.retained_messages", _none_if_false),
    "check_retain_source": _Setting("check_retain_source", _truth),
    "sys_interval": _Setting("sys.interval", _whole),
}

# Who may connect: the hub's, or with per_listener_settings each listener's.
_ADMISSION: Final[dict[str, _Setting]] = {
    "allow_anonymous": _Setting("allow_anonymous", _truth),
    "password_file": _Setting("password_file", _text),
    "acl_file": _Setting("acl_file", _text),
}

# mosquitto's own plugins which a setting stands for, by the name of their file: the option of
# theirs that says it, and what that option is called without the plugin.
_PLUGINS: Final[dict[str, tuple[str, str]]] = {
    "mosquitto_dynamic_security": ("plugin_opt_config_file", "dynamic_security"),
    "mosquitto_password_file": ("plugin_opt_password_file", "password_file"),
    "mosquitto_acl_file": ("plugin_opt_acl_file", "acl_file"),
}
_PLUGIN: Final = (
    "plugins cannot be loaded; use password_file and acl_file, or mosquitto's own for these or "
    "for dynamic security"
)

# A listener's settings.
_LISTENER: Final[dict[str, _Setting]] = {
    "max_connections": _Setting("max_connections", _or_none),
    "certfile": _Setting("tls.certificate", _text),
    "keyfile": _Setting("tls.key", _text),
    "cafile": _Setting("tls.client_ca", _text),
    "capath": _Setting("tls.client_ca", _text),
    "psk_hint": _Setting("tls.psk_hint", _text),
    "crlfile": _Setting("tls.crl", _text),
    "ciphers": _Setting("tls.ciphers", _text),
    "tls_version": _Setting("tls.version", _one_of({"tlsv1.2": "1.2", "tlsv1.3": "1.3"})),
    "require_certificate": _Setting("tls.require_certificate", _truth),
    "use_identity_as_username": _Setting("tls.identity", _if_true("common_name")),
    "use_subject_as_username": _Setting("tls.identity", _if_true("subject")),
    "protocol": _Setting("websocket", _one_of({"mqtt": "never", "websockets": "only"})),
    "allow_zero_length_clientid": _Setting("require_client_id", _not),
    "mount_point": _Setting("mount_point", _text),
    "listener_allow_anonymous": _Setting("allow_anonymous", _truth),
    "websockets_origin": _Setting("origins", _words),
}

# A bridge's settings.
_BRIDGE: Final[dict[str, _Setting]] = {
    "address": _Setting("addresses", _words),
    "addresses": _Setting("addresses", _words),
    "remote_username": _Setting("user", _text),
    "username": _Setting("user", _text),
    "remote_password": _Setting("password", _text),
    "password": _Setting("password", _text),
    "remote_clientid": _Setting("client_id", _text),
    "clientid": _Setting("client_id", _text),
    "cleansession": _Setting("clean", _truth),
    "keepalive_interval": _Setting("keep_alive", _whole),
    "restart_timeout": _Setting("retry_seconds", _last_number),
    "bridge_protocol_version": _Setting(
        "version", _one_of({"mqttv50": "5.0", "mqttv311": "3.1.1", "mqttv31": "3.1.1"})
    ),
    "bridge_cafile": _Setting("ca", _text),
    "bridge_capath": _Setting("ca", _text),
    "bridge_certfile": _Setting("certificate", _text),
    "bridge_keyfile": _Setting("key", _text),
    "bridge_insecure": _Setting("check_name", _not),
    "bridge_outgoing_retain": _Setting("retain", _truth),
    "try_private": _Setting("try_private", _truth),
}

# What makes no difference, whatever its value: the hub does it anyway, or has no need of it.
_SAME: Final = frozenset({
    "allow_duplicate_messages", "auth_plugin_deny_special_chars", "autosave_interval",
    "autosave_on_changes",
    "bridge_attempt_unsubscribe", "bridge_tls_use_os_certs", "connection_messages", "dhparamfile",
    "log_timestamp", "log_timestamp_format", "packet_buffer_size", "retain_expiry_interval",
    "retry_interval",
    "set_tcp_nodelay", "store_clean_interval", "websockets_headers_size",
    "websockets_log_level",
})  # fmt: skip

# What cannot be done, and the nearest there is. With a value: only that value cannot be done.
_NOTED: Final[dict[str, str]] = {
    "accept_protocol_versions": "every version is taken",
    "auto_id_prefix": "the hub chooses ids of its own; their form is no setting",
    "bridge_alpn": "the nearest is `tls` of [[bridge]]",
    "bridge_bind_address": "the system chooses the address",
    "bridge_ciphers": "OpenSSL's own choice is taken",
    "bridge_ciphers_tls1.3": "OpenSSL's own choice is taken",
    "bridge_max_packet_size": "the nearest is limits.message_bytes",
    "bridge_max_topic_alias": "the nearest is `version` of [[bridge]]",
    "bridge_receive_maximum": "the nearest is session.inflight",
    "bridge_reload_type": "bridges change when the hub is started again",
    "bridge_session_expiry_interval": "the nearest is `clean` of [[bridge]]",
    "bridge_tcp_keepalive": "the nearest is `keep_alive` of [[bridge]]",
    "bridge_tcp_user_timeout": "the nearest is `keep_alive` of [[bridge]]",
    "bridge_tls_version": "OpenSSL's own choice is taken",
    "ciphers_tls1.3": "the nearest is tls.ciphers, which is about 1.2",
    "disable_client_cert_date_checks true": "certificates that are out of date are refused",
    "enable_control_api true": "`hubbub config` and `hubbub status` say it",
    "global_max_clients": "the nearest is max_connections of each listener",
    "global_max_connections": "the nearest is max_connections of each listener",
    "http_dir": "mount a web application on a Hub object instead",
    "idle_timeout": "bridges stay connected",
    "listener_auto_id_prefix": "the hub chooses ids of its own; their form is no setting",
    "local_cleansession": "the nearest is `clean` of [[bridge]]",
    "local_clientid": "the nearest is `name` of [[bridge]]",
    "local_password": "a bridge needs no permission on this side",
    "local_username": "a bridge needs no permission on this side",
    "log_facility": "the hub logs to stderr",
    "memory_limit": "the nearest are limits.message_bytes and session.backlog_bytes",
    "notification_topic": "the topic is $SYS/broker/connection/NAME/state, here only",
    "notifications false": "$SYS/broker/connection/NAME/state says it to who wants to know",
    "notifications_local_only false": "bridges say their state here only",
    "pid_file": "leave that to what starts the hub",
    "queue_qos0_messages true": "messages of QoS 0 are not kept for clients that are away",
    "round_robin true": "the addresses of a bridge are tried in turn when one fails",
    "start_type lazy": "bridges connect when the hub starts",
    "start_type once": "bridges connect again when the connection is lost",
    "threshold": "bridges stay connected",
}

# What would change who may do what, or where: nothing may be left out in silence.
_REFUSED: Final[dict[str, str]] = {
    "auth_plugin": "plugins cannot be loaded; use password_file, or `authenticate` of a Hub object",
    "bind_interface": "say the address of that interface: listener PORT ADDRESS",
    "bridge_identity": "bridges have no shared keys here; use bridge_cafile",
    "bridge_psk": "bridges have no shared keys here; use bridge_cafile",
    "bridge_require_ocsp true": "OCSP is not asked; use a short-lived certificate over there",
    "enable_proxy_protocol": "it names no balancers; `proxies` of a [[listener]] of ours does",
    "plugin_load": "plugins cannot be loaded; use password_file and acl_file",
    "plugin_use": "plugins cannot be loaded; use password_file and acl_file",
    "proxy_protocol_v2_require_tls": "`proxies` of a [[listener]] of ours does it",
    "tls_engine": "keys are read from files only; use keyfile",
    "tls_engine_kpass_sha1": "keys are read from files only; use keyfile",
    "tls_keyform engine": "keys are read from files only; use keyfile",
    "use_username_as_clientid true": "a client says its own id; use acl_file with %u",
}

_NOT_KEPT: Final = (
    "there is no `persistence true`: nothing is kept on the disk, and there are no tables. Say "
    "it, or --set journal.record=all, to have the journal"
)

_LEVELS: Final = {
    "all": "debug", "debug": "debug", "websockets": "debug", "subscribe": "debug",
    "unsubscribe": "debug", "internal": "debug", "information": "info", "notice": "info",
    "warning": "warning", "error": "error", "none": "error",
}  # fmt: skip
_LOUDEST_FIRST: Final = ("debug", "info", "warning", "error")


class _Reader:
    """Takes the lines in order; `listener` and `bridge` are those that options belong to."""

    def __init__(self) -> None:
        self.tree: dict[str, Any] = {}
        self.notes: list[str] = []
        self.listeners: list[dict[str, Any]] = []
        self.bridges: list[dict[str, Any]] = []
        self.default: dict[str, Any] = {}  # of `port`, and what stands before any listener
        self.early: list[_Line] = []
        self.listener = self.default
        self.bridge: dict[str, Any] | None = None
        self.apart = False
        self.database = "mosquitto.db"
        self.plugin: tuple[_Line, str, str] | None = None  # whose option is awaited
        self.own: dict[str, Callable[[_Line], None]] = {
            "listener": self._listener,
            "port": self._port,
            "bind_address": self._bind_address,
            "socket_domain": self._socket_domain,
            "per_listener_settings": self._per_listener,
            "connection": self._connection,
            "topic": self._topic,
            "start_type": self._start_type,
            "clientid_prefixes": self._prefixes,
            "max_qos": self._maximum_qos,
            "maximum_qos": self._maximum_qos,
            "max_keepalive": self._keep_alive,
            "log_type": self._log_type,
            "log_dest": self._log_dest,
            "psk_file": self._psk_file,
            "user": self._user,
            "persistence_file": self._persistence_file,
            "plugin": self._plugin,
            "global_plugin": self._plugin,
        }

    def take(self, line: _Line) -> None:
        option, choice = line.option, f"{line.option} {line.value}"
        if choice in _REFUSED or option in _REFUSED:
            raise line.trouble(_REFUSED.get(choice) or _REFUSED[option])
        if choice in _NOTED or option in _NOTED:
            self._note(line, _NOTED.get(choice) or _NOTED[option])
        elif option in self.own:
            self.own[option](line)
        elif option in _HUB:
            self._put(self.tree, Settings, _HUB[option], line)
        elif option in _ADMISSION:
            tree = self.listener if self.apart else self.tree
            self._put(tree, Listener if self.apart else Settings, _ADMISSION[option], line)
        elif option in _LISTENER:
            if self.listener is self.default:
                self.early.append(line)
            self._put(self.listener, Listener, _LISTENER[option], line)
        elif option in _BRIDGE:
            self._put(self._its_bridge(line), Bridge, _BRIDGE[option], line)
        elif option.startswith("plugin_opt_"):
            self._plugin_option(line)
        elif option not in _SAME and not _has_one_value_only(option):
            raise _named(line).trouble(_unknown(option))

    def _put(
        self, tree: dict[str, Any], kind: type[msgspec.Struct], setting: _Setting, line: _Line
    ) -> None:
        value = setting.read(line)
        if value is None:
            return
        path = setting.path.split(".")
        _check(kind, path, value, line)
        *sections, name = path
        for section in sections:
            tree = tree.setdefault(section, {})
        tree[name] = value

    def _note(self, line: _Line, text: str) -> None:
        self.notes.append(f"{line.place}: {line.option} {line.value} has no effect: {text}")

    # Listeners

    def _listener(self, line: _Line) -> None:
        port, _, host = _text(line).partition(" ")
        host = host.strip()
        if not port.isdecimal() or int(port) > 65_535 or host.startswith("/") != (port == "0"):
            raise line.trouble("expected `listener PORT [ADDRESS]` or `listener 0 /PATH`")
        self.listener = {"port": port, "host": host}
        self.listeners.append(self.listener)

    def _port(self, line: _Line) -> None:
        self.default["port"] = str(_whole(line))

    def _bind_address(self, line: _Line) -> None:
        self.default["host"] = _text(line)

    def _socket_domain(self, line: _Line) -> None:
        if _one_of({"ipv4": True, "ipv6": False})(line):
            self.listener["domain"] = "0.0.0.0"

    def _per_listener(self, line: _Line) -> None:
        self.apart = _truth(line)

    def _psk_file(self, line: _Line) -> None:
        """The hub's, for the listeners that have a hint; or one listener's."""
        (self.listener if self.apart else self.tree)["keys"] = _text(line)

    def _prefixes(self, line: _Line) -> None:
        self.tree["prefixes"] = _words(line)

    # Bridges

    def _connection(self, line: _Line) -> None:
        self.bridge = {"name": _text(line), "addresses": [], "topics": []}
        self.bridges.append(self.bridge)

    def _its_bridge(self, line: _Line) -> dict[str, Any]:
        if self.bridge is None:
            raise line.trouble("belongs to a bridge; say `connection NAME` before it")
        return self.bridge

    def _topic(self, line: _Line) -> None:
        bridge = self._its_bridge(line)
        try:
            topic = parse_bridge_topic(_text(line))
        except SettingError:
            raise line.trouble(
                "expected `topic FILTER out|in|both QOS LOCAL-PREFIX REMOTE-PREFIX`"
            ) from None
        inner = topic.local + topic.filter, topic.remote + topic.filter
        if inner[0].startswith("$") or (topic.out and inner[1].startswith("$")):
            self._note(line, "under `$` nothing crosses but what comes in from over there")
        else:
            bridge["topics"].append(line.value)

    def _start_type(self, line: _Line) -> None:
        _one_of({"automatic": True})(line)  # the others are noted

    # The process

    def _keep_alive(self, line: _Line) -> None:
        """Of clients of 5.0, which are told so; there those before it are refused."""
        self._put(self.tree, Settings, _Setting("mqtt.max_keepalive", _whole), line)
        self.tree["mqtt"]["refuse_keepalive"] = self.tree["mqtt"]["max_keepalive"] > 0

    def _maximum_qos(self, line: _Line) -> None:
        """A listener's there and the hub's here: the smallest counts."""
        _check(Settings, ["mqtt", "maximum_qos"], _whole(line), line)
        mqtt = self.tree.setdefault("mqtt", {})
        mqtt["maximum_qos"] = min(mqtt.get("maximum_qos", 2), _whole(line))
        if len(self.listeners) > 1:
            self.notes.append(f"{line.place}: {line.option} counts for every listener")

    def _log_type(self, line: _Line) -> None:
        level = _one_of(_LEVELS)(line)
        before = self.tree.setdefault("log", {}).get("level", level)
        self.tree["log"]["level"] = min(before, level, key=_LOUDEST_FIRST.index)

    def _log_dest(self, line: _Line) -> None:
        if line.value not in ("stderr", "stdout"):
            self._note(line, "the hub logs to stderr; let what starts it keep that")

    def _user(self, line: _Line) -> None:
        if os.geteuid() == 0 and line.value != "root":
            raise line.trouble(
                "the hub does not change its user; start it as that user, or say `user root`"
            )

    def _persistence_file(self, line: _Line) -> None:
        self.database = _text(line)

    # Plugins

    def _plugin(self, line: _Line) -> None:
        """One of mosquitto's own: its file is a setting here."""
        self._plugin_ends()
        known = _PLUGINS.get(Path(line.value).stem)
        if known is None:
            raise line.trouble(_PLUGIN)
        self.plugin = line, *known

    def _plugin_option(self, line: _Line) -> None:
        if self.plugin is None:
            raise line.trouble("belongs to a plugin; say `plugin FILE` before it")
        plugin, option, becomes = self.plugin
        if line.option != option:
            raise line.trouble(f"of this plugin {option} is understood")
        apart = self.apart and plugin.option == "plugin"
        if apart and becomes not in _ADMISSION:
            raise plugin.trouble("here it counts for every listener; leave per_listener_settings")
        (self.listener if apart else self.tree)[becomes] = _text(line)
        self.plugin = None

    def _plugin_ends(self) -> None:
        if self.plugin is not None:
            line, option, _ = self.plugin
            raise line.trouble(f"expected {option} after it")

    # The end

    def finish(self) -> Reading:
        self._plugin_ends()
        if {"port", "host"} & set(self.default):
            self.listeners.insert(0, {"port": "1883", "host": "", **self.default})
        elif self.listeners:
            for line in self.early:
                self._note(line, "it stands before any listener")
        if "record" not in self.tree.setdefault("journal", {}):
            self.tree["journal"]["record"] = "none"
            self.notes.append(_NOT_KEPT)
        # Paho's clients of 5.0 do not heed a shorter one, and would be ended again and again.
        self.tree.setdefault("mqtt", {}).setdefault("max_keepalive", 0)
        prefixes, keys = self.tree.pop("prefixes", []), self.tree.pop("keys", "")
        if self.listeners:
            # Only without any listener does it let everybody in, and listens on loopback.
            closed = self.listeners if self.apart else [self.tree]
            for one in closed:
                one.setdefault("allow_anonymous", False)
            self.tree["listen"] = []
            self.tree["listener"] = [_finished(one, prefixes, keys) for one in self.listeners]
        else:
            of_all = {name for name in self.default if name == "tls" or name in _ADMISSION}
            self.tree |= {name: self.default[name] for name in of_all}
            _finish_tls(self.tree, "1883", keys)
        if self.bridges:
            self.tree["bridge"] = [_with_tls(bridge) for bridge in self.bridges]
        kept = self.tree["journal"]["record"] != "none"
        place = Path(self.tree.get("data", "."), self.database) if kept else None
        return Reading(self.tree, self.notes, place)


def _finished(listener: dict[str, Any], prefixes: list[str], keys: str) -> dict[str, Any]:
    """A listener whose address is put together."""
    domain = listener.pop("domain", "::")
    host, port = listener.pop("host") or domain, listener.pop("port")
    if host.startswith("/"):
        listener["address"] = f"unix:{host}"
    else:
        listener["address"] = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    listener["protocols"] = ["mqtt"]
    listener.setdefault("websocket", "never")
    if prefixes:
        listener["client_prefixes"] = prefixes
    _finish_tls(listener, port, keys)
    return listener


def _finish_tls(tree: dict[str, Any], port: str, keys: str) -> None:
    """TLS as mosquitto means it: no other way in, and certificates of clients only if required.

    Its authorities complete the chain of the server's own certificate in any case: clients may
    trust no more than the root.
    """
    tls = tree.get("tls", {})
    keys = tree.pop("keys", keys)
    if "psk_hint" in tls:
        if not keys:
            raise SettingError(f"listener {port}: psk_hint needs psk_file")
        tls["psk_file"] = keys
    required = tls.get("require_certificate", False)
    if not required:
        if "client_ca" in tls:
            tls["chain"] = tls["client_ca"]
        identity = tls.get("identity")
        for name in ("client_ca", "crl", "require_certificate", "identity"):
            tls.pop(name, None)
        if "psk_file" in tls and identity:
            tls["identity"] = identity
    if tls.get("certificate") or tls.get("psk_file"):
        tls["only"] = True
    elif required or tls.get("key"):
        raise SettingError(f"listener {port}: keyfile and require_certificate need certfile")
    else:
        tree.pop("tls", None)


def _with_tls(bridge: dict[str, Any]) -> dict[str, Any]:
    if not bridge["addresses"]:
        raise SettingError(f"connection {bridge['name']}: expected an address")
    if "ca" in bridge or "certificate" in bridge:
        bridge["tls"] = True
    return bridge


def read(file: Path) -> Reading:
    """The settings of a mosquitto.conf; SettingError says which line cannot be followed."""
    reader = _Reader()
    for line in _lines(file, 0):
        reader.take(line)
    return reader.finish()


def _lines(file: Path, depth: int) -> Iterator[_Line]:
    """The options in order, those of `include_dir` where it stands."""
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise SettingError(f"cannot read the configuration {file}: {reason}") from None
    for number, words in enumerate(text.splitlines(), 1):
        if not words.strip() or words.lstrip().startswith("#"):
            continue
        option, _, value = words.strip().replace("\t", " ").partition(" ")
        line = _Line(f"{file}:{number}", option, value.strip())
        if option == "include_dir":
            yield from _included(line, depth)
        elif not option.startswith("auth_opt_"):  # the plugin itself is refused
            yield line


def _included(line: _Line, depth: int) -> Iterator[_Line]:
    folder = Path(_text(line))
    if depth >= _INCLUDES or not folder.is_dir():
        raise line.trouble("expected a directory, and few inside one another")
    for file in sorted(folder.glob("*.conf")):
        yield from _lines(file, depth + 1)


def _has_one_value_only(option: str) -> bool:
    """Whether another value of that option is noted or refused; this one is what the hub does."""
    return any(known.partition(" ")[0] == option for known in (*_NOTED, *_REFUSED))


def options() -> frozenset[str]:
    """Every option that is understood, to be followed or refused."""
    tables = (_HUB, _ADMISSION, _LISTENER, _BRIDGE, _NOTED, _REFUSED, _Reader().own)
    names = {name.partition(" ")[0] for table in tables for name in table}
    return frozenset(names | _SAME | {"include_dir"})


def _named(line: _Line) -> _Line:
    """Only what may be the name of an option: a file of passwords taken for this one has others."""
    name = _NAME_OF_OPTION.match(line.option)
    assert name is not None, "it may be empty"
    return line if name[0] == line.option else line._replace(option=f"{name[0]}…", value="")


_NAME_OF_OPTION: Final = re.compile(r"\w{0,40}")
_SECRET: Final = re.compile(r"pas(?!.*file)|psk$")


def _unknown(option: str) -> str:
    hint = meant(option, options(), like=0.6)
    return f"no such option; {hint}" if hint else "no such option of mosquitto"
