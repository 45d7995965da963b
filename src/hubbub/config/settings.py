"""Every setting of the hub, declared once: its name, type, default and reason.

`config` reads them from files and the command line and writes the manual from them; the server,
the hub and the protocols take `Settings`. Here is also how an address to listen on and a topic of
a bridge are written. Never reads a file or opens a socket.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from hubbub.config.cluster import Cluster
from hubbub.config.identity import Jwt as Jwt
from hubbub.config.identity import Tls as Tls
from hubbub.config.identity import because as _because
from hubbub.config.identity import networks as networks
from hubbub.config.limits import Limits as Limits
from hubbub.errors import SettingError

DEFAULT_DATA: Final = "./hubbub-data"
DEFAULT_LISTEN: Final = ("127.0.0.1:1883", "127.0.0.1:8080")

Count = Annotated[int, Meta(ge=1)]
CountOrNone = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]


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
    mount_point: Annotated[
        str,
        _because(
            "what the topics of MQTT clients here have before the names that they say and see; "
            "for a listener that speaks nothing but MQTT"
        ),
    ] = ""
    max_connections: Annotated[
        CountOrNone, _because("connections at one time, one more is closed; 0 sets no bound here")
    ] = 0
    proxies: Annotated[
        tuple[str, ...],
        _because(
            "addresses or networks of balancers, whose connections must begin with a header of the "
            "PROXY protocol, 1 or 2: it says who the client is. Who else comes is itself"
        ),
    ] = ()
    origins: Annotated[
        tuple[str, ...],
        _because("web pages of these origins may use this listener, beside its own"),
    ] = ()
    hosts: Annotated[
        tuple[str, ...], _because("as the setting of that name above, for this listener alone")
    ] = ()
    durability: Annotated[
        Literal["", "disk", "os", "none"],
        _because(
            "what its clients are promised: as journal.durability, which empty takes, or less"
        ),
    ] = ""
    tls: Tls = Tls()
    jwt: Jwt = Jwt()

    @property
    def checks(self) -> bool:
        """Whether it can tell one client from another, for lack of which none may be public."""
        return bool(self.password_file or self.jwt.keys) or self.tls.require_certificate


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
    try_private: Annotated[
        bool,
        _because(
            "before 5.0, say first that this is a bridge, so that a mosquitto over there sends "
            "nothing back; other brokers refuse that, and plain 3.1.1 is spoken then"
        ),
    ] = True
    client_id: Annotated[str, _because("who this hub is over there; empty means HOSTNAME.NAME")] = (
        ""
    )
    user: Annotated[str, _because("the user name over there; empty sends none")] = ""
    password: Annotated[str, _because("the password over there")] = ""
    keep_alive: Annotated[
        Annotated[int, Meta(ge=5, le=65_535)],
        _because("seconds; a broker that is silent for one and a half of it is given up"),
    ] = 60
    retain: Annotated[
        bool, _because("whether retained messages are retained over there too")
    ] = True
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
    topic_durability: Annotated[
        tuple[str, ...],
        _because(
            'what a publisher is promised, by topic: "FILTER disk|os|none", the first that matches '
            "counts, whatever the listener says; not more than durability"
        ),
    ] = ()
    exclude: Annotated[
        tuple[str, ...],
        _because("messages whose topic matches one of these filters are never recorded"),
    ] = ()
    audit: Annotated[
        bool,
        _because(
            "who was refused and who managed what are rows too, whatever is recorded: at most 4 a "
            "second of 250 bytes however many are refused. Who came in is a row as record says"
        ),
    ] = True
    segment_bytes: Annotated[
        Annotated[int, Meta(ge=64 * 1024)],
        _because("a segment of this size is closed, folded into a snapshot and compressed"),
    ] = 64 * 1024 * 1024
    segment_seconds: Annotated[
        Annotated[float, Meta(ge=1)],
        _because("a segment of this age too; it bounds what a start-up has to read"),
    ] = 3600.0
    scrub_days: Annotated[
        Seconds,
        _because("how often all of it is read, 20 MB/s, to find what the disk cannot; 0 is never"),
    ] = 7.0
    retain_seconds: Annotated[
        Seconds, _because("rows older than this may go (7 days); 0 sets no bound by age")
    ] = 7 * 86_400.0
    retain_bytes: Annotated[
        CountOrNone,
        _because("the oldest segments go when all are larger; 0 means a fifth of the disk"),
    ] = 0
    keep_free_bytes: Annotated[
        CountOrNone,
        _because(
            "with less free on the disk, what would stay there is refused (queues, sessions away, "
            "delayed, new retained); 0: three segments and room for two snapshots, or 5 %"
        ),
    ] = 0


class Session(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of what one client may leave unacknowledged."""

    inflight: Annotated[
        Annotated[int, Meta(ge=1, le=65_535)],
        _because("deliveries on their way to one client: 5,000 a second over a line of 100 ms"),
    ] = 512
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
    subscriptions: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000)],
        _because("of one client; one more is refused. A client with so many takes 5 MB"),
    ] = 10_000


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
            "toward clients of 3.1 and 3.1.1 one QoS 2 handshake at a time, nothing between, for "
            "those that accept nothing else then. Those known to need it, whose ids begin with "
            "`Sagittarius-MQTT`, have it anyway; others only wait longer"
        ),
    ] = False
    maximum_qos: Annotated[
        Annotated[int, Meta(ge=0, le=2)],
        _because(
            "the highest QoS that clients may publish or subscribe with; those of 5.0 are told it"
        ),
    ] = 2
    upgrade_qos: Annotated[
        bool,
        _because(
            "messages of MQTT clients and bridges come with the QoS of each subscription, also if "
            "they were published with less; false delivers with the lower of both"
        ),
    ] = False
    max_keepalive: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)],
        _because(
            "clients of 5.0 that ask for a longer keep alive, or for none, are told this one, in "
            "seconds: who is gone is noticed in 1.5 times of it. Some, as Paho's, do not heed it "
            "and are ended then. 0 leaves it to them"
        ),
    ] = 60
    payload_bytes: Annotated[
        CountOrNone,
        _because(
            "a message with a larger payload is acknowledged and dropped, counted, and told of as "
            "what a client may not do (`hubbub refusals`); clients of 5.0 are told 0x97, and a "
            "will is refused. 0 leaves it to limits.message_bytes, which ends the connection"
        ),
    ] = 0
    refuse_keepalive: Annotated[
        bool,
        _because(
            "clients of before 5.0, which cannot be told of max_keepalive, are refused (CONNACK "
            "2) if they ask for more, as mosquitto does"
        ),
    ] = False
    max_session_expiry: Annotated[
        Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)],
        _because(
            "the longest time in seconds that a session outlives its connection; clients of 5.0 "
            "that ask for more are told; 4_294_967_295 is for ever"
        ),
    ] = 28 * 86_400
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
    topic_aliases_sent: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)],
        _because(
            "topic aliases that the hub uses toward one of 5.0, if that announces as many; 0 for "
            "those that announce some and keep none, as mqtt.js 4 can be led to"
        ),
    ] = 65_535
    wildcard_subscriptions: Annotated[
        bool,
        _because(
            "whether clients may subscribe with + and #, and so listen to everything; what lasting "
            "sessions and queues have from before goes on"
        ),
    ] = True
    shared_subscriptions: Annotated[
        bool, _because("whether they may share one: `$share/GROUP/FILTER`")
    ] = True
    connect_rate: Annotated[
        CountOrNone,
        _because(
            "clients that come in a second, of all together; one more is refused, those of 5.0 "
            "with 0x9F, and may try again. 0 sets no bound"
        ),
    ] = 0
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


class Api(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What programs ask over HTTP: the status, the journal, publishing (Spark does)."""

    token: Annotated[
        str,
        _because(
            "who shows it as `Authorization: Bearer TOKEN` may read and publish everything under "
            "`/api/`, and nobody else may; empty leaves it to the rules of each address"
        ),
    ] = ""
    token_file: Annotated[
        str, _because("a file with the token, so that it is not in here; read again by SIGHUP")
    ] = ""


class Pipeline(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `hubbub pipeline run --config FILE` reads of this file. The hub itself does not look."""

    catalog: Annotated[
        str,
        _because(
            'the tables are tables of Apache Iceberg too, in this catalog: "sqlite" is a file '
            "beside them; sqlite:///… or postgresql+psycopg2://… a database, http(s)://… REST, "
            "thrift://… Hive; else a name from pyiceberg's own settings. Empty is none"
        ),
    ] = ""
    namespace: Annotated[
        str, _because("what the tables are called there: NAMESPACE.messages; one for each hub")
    ] = "hubbub"


class Log(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the process says on stderr."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        _because("the least that is worth a line: debug, info, warning or error"),
    ] = "info"
    format: Annotated[
        Literal["text", "json"],
        _because('"json": an object a line, with user, client and address apart, for collectors'),
    ] = "text"
    clients: Annotated[
        tuple[str, ...],
        _because(
            "with the level debug only what these clients do is shown: their ids, * for any "
            "characters; empty shows all"
        ),
    ] = ()


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings. `Settings()` is the default hub: loopback, everything recorded, on disk."""

    listen: Annotated[
        tuple[str, ...],
        _because("addresses that speak everything; 1883 and 8080 are where clients look first"),
    ] = DEFAULT_LISTEN
    data: Annotated[
        Annotated[str, Meta(min_length=1)],
        _because("the directory of the journal, relative to where the hub is started"),
    ] = DEFAULT_DATA
    processes: Annotated[
        Annotated[int, Meta(ge=1, le=64)],
        _because(
            "processes that serve these addresses as one hub, each with its journal below `data`: "
            "one for each core that messages are to use. Never fewer than before"
        ),
    ] = 1
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
    dynamic_security: Annotated[
        str,
        _because(
            "clients, groups and roles that `mosquitto_ctrl dynsec` manages while the hub runs, in "
            "mosquitto's dynamic-security.json; instead of password_file and acl_file"
        ),
    ] = ""
    check_retain_source: Annotated[
        bool,
        _because(
            "a retained message is given to a new subscriber only if its publisher may still "
            "write there, as the rules say now; false gives it whatever they say"
        ),
    ] = True
    hosts: Annotated[
        tuple[str, ...],
        _because(
            "what browsers call this hub, beside IP addresses, localhost and the machine's own "
            "name; \".example.org\" means every name below. Asked for where clients need neither "
            "credentials nor TLS: a web page can let its own name mean this address"
        ),
    ] = ()
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
    jwt: Jwt = Jwt()
    journal: Journal = Journal()
    limits: Limits = Limits()
    session: Session = Session()
    smq: Smq = Smq()
    mqtt: Mqtt = Mqtt()
    queue: Queue = Queue()
    rpc: Rpc = Rpc()
    sys: Sys = Sys()
    api: Api = Api()
    cluster: Cluster = Cluster()
    pipeline: Pipeline = Pipeline()
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
            hosts=listener.hosts or self.hosts,
            durability=listener.durability or self.durability,
            tls=listener.tls if listener.tls != Tls() else self.tls,
            jwt=listener.jwt if listener.jwt != Jwt() else self.jwt,
        )
        self._refuse_more(f"{listener.address}: durability", filled.durability)
        allow = listener.allow_anonymous
        if allow is None:
            allow = self.allow_anonymous
        if allow is None and (filled.password_file or filled.jwt.keys or self.dynamic_security):
            allow = False
        if allow is None:
            allow = filled.checks or parse_address(listener.address).loopback
        return msgspec.structs.replace(filled, allow_anonymous=allow)

    @property
    def durability(self) -> str:
        """The most that anybody can be promised: of "disk", "os" and "none"."""
        return "none" if self.journal.record == "none" else self.journal.durability

    def topic_durability(self) -> list[tuple[str, str]]:
        """Filters and what is promised there, in the order in which they count."""
        rules = []
        for text in self.journal.topic_durability:
            topic_filter, _, wanted = text.rpartition(" ")
            if not topic_filter.strip() or wanted not in _PROMISES:
                raise SettingError(
                    f'journal.topic_durability: {text!r}: expected "FILTER disk|os|none", for '
                    'example "sensors/# os"'
                )
            self._refuse_more(f"journal.topic_durability: {text!r}", wanted)
            rules.append((topic_filter.strip(), wanted))
        return rules

    def _refuse_more(self, what: str, wanted: str) -> None:
        if _PROMISES.index(wanted) > _PROMISES.index(self.durability):
            raise SettingError(
                f'{what} = "{wanted}" is more than the journal does: it has journal.record = '
                f'"{self.journal.record}" and journal.durability = "{self.journal.durability}"'
            )


_PROMISES: Final = ("none", "os", "disk")  # each is more than the one before


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
            f"cannot listen on {text!r}: expected ADDR:PORT (0 to 65535), for example "
            "127.0.0.1:1883 or [::1]:0, or unix:PATH"
        )
    return Address(match["v6"] or match["host"], int(match["port"]))
