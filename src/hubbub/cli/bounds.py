"""Every bound of the hub in one table, for `hubbub config --bounds`.

One row a bound: of whom it is, what happens at it, and the setting that changes it, if one does.
Values are those of `core.limits`, or what the settings say. A test fails if a constant of
`core.limits` or a number of `config.limits` has no row here.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final, NamedTuple

from hubbub.config.settings import Settings
from hubbub.core import limits

# Of whom.
ADDRESS: Final = "address"
ALL: Final = "all"
CLIENT: Final = "client"
CONNECTION: Final = "connection"
PACKET: Final = "packet"
QUEUE: Final = "queue"
SELF: Final = "hub itself"
STRANGER: Final = "not logged in"
USER: Final = "user"


class Bound(NamedTuple):
    """`name`: a constant of `core.limits`, in small letters, or what a setting alone says. `zero`:
    what 0 means there.
    """

    name: str
    whose: str
    at_it: str
    setting: str = ""
    zero: str = "none"

    def value(self, settings: Settings) -> Any:
        if self.setting and not self.setting.startswith("listener"):
            return attrgetter(self.setting)(settings)
        return getattr(limits, self.name.upper(), 0)


# What is one of these is no bound, but a unit or a size that others are counted with.
UNITS: Final = ("KIB", "MIB")

BOUNDS: Final = (
    Bound("head_bytes", STRANGER, "closed, HTTP 431"),
    Bound("pipelined", CONNECTION, "web pages, API, before a login: closed"),
    Bound("strangers", ALL, "the oldest goes of who has a fourth of them"),
    Bound("stranger_seconds", STRANGER, "closed"),
    Bound("strangers_share", ALL, "of the time for who is not logged in: they wait"),
    Bound("strangers_burst", ALL, "saved up of it, then they wait"),
    Bound("heard_seconds", STRANGER, "what one turn costs at most: the rest is not counted"),
    Bound("made_seconds", STRANGER, "what a connection that waited costs beside what it says"),
    Bound("asked_seconds", STRANGER, "what a request costs beside what is measured"),
    Bound("login_bytes", STRANGER, "closed"),
    Bound("connect_bytes", STRANGER, "closed, MQTT 0x95"),
    Bound("handshakes", ALL, "the oldest TLS handshake goes of an address with most"),
    Bound("half_seconds", CONNECTION, "no rest of a packet or request, a page not read: closed"),
    Bound("early_bytes", STRANGER, "closed"),
    Bound("control_bytes", PACKET, "the command is answered with an error"),
    Bound("token_bytes", STRANGER, "refused"),
    Bound("token_lines", STRANGER, "refused"),
    Bound("token_keys", SELF, "does not start"),
    Bound("tls_seconds", STRANGER, "closed"),
    Bound("tls_empty", CONNECTION, "TLS records without data, and one a second: closed"),
    Bound("close_seconds", CONNECTION, "cut off"),
    Bound("gone_seconds", SELF, "others are counted out until then"),
    Bound("linger_seconds", CONNECTION, "cut off"),
    Bound("farewells", ALL, "the oldest that leaves is cut off"),
    Bound("max_connections", ALL, "one more is closed", "listener.max_connections"),
    Bound("address_connections", ADDRESS, "refused: 0x97, 429", "limits.address_connections"),
    Bound(
        "address_connections_per_second", ADDRESS, "refused: 0x9F, 429",
        "limits.address_connections_per_second",
    ),
    Bound("user_connections", USER, "refused: 0x97, 429", "limits.user_connections"),
    Bound("connect_rate", ALL, "refused: MQTT 0x9F", "mqtt.connect_rate"),
    Bound(
        "client_messages_per_second", CLIENT, "read more slowly",
        "limits.client_messages_per_second",
    ),
    Bound(
        "client_bytes_per_second", CLIENT, "read more slowly", "limits.client_bytes_per_second"
    ),
    Bound(
        "user_messages_per_second", USER, "read more slowly", "limits.user_messages_per_second"
    ),
    Bound("user_bytes_per_second", USER, "read more slowly", "limits.user_bytes_per_second"),
    Bound("burst_seconds", CLIENT, "of a rate at once", "limits.burst_seconds"),
    Bound("gone_most", USER, "the oldest that closed is not heard to its end"),
    Bound("link_choked", CONNECTION, "QoS 0 is dropped, backlogs wait"),
    Bound("link_paused", CONNECTION, "nothing more is read of it"),
    Bound("link_bytes", CONNECTION, "ended, beside the largest piece"),
    Bound(
        "hold_back_seconds", CLIENT, "waits no longer for its only reader",
        "limits.hold_back_seconds", "0 s",
    ),
    Bound("hold_back_from", CLIENT, "who sent less does not wait"),
    Bound("hold_back_again", CLIENT, "does not wait again so soon"),
    Bound("hold_back_bytes", CONNECTION, "QoS 0 is dropped"),
    Bound("stalled_seconds", CONNECTION, "ended: it reads nothing"),
    Bound("send_buffer", CONNECTION, "the rest waits in the hub"),
    Bound("keep_alive_seconds", CONNECTION, "TCP asks whether it is there"),
    Bound("waiting_bytes", ALL, "the heaviest of the user with the most", "limits.waiting_bytes"),
    Bound("strange_bytes", ALL, "the heaviest that is not logged in goes"),
    Bound("weighed_bytes", CONNECTION, "weighed again"),
    Bound("relieved", ALL, "ended until one part of so many is free"),
    Bound("asked_bytes", CONNECTION, "what a waiting request counts"),
    Bound("message_bytes", PACKET, "MQTT 0x95, HTTP 413, closed", "limits.message_bytes"),
    Bound("payload_bytes", PACKET, "dropped, MQTT 0x97", "mqtt.payload_bytes"),
    Bound("name_bytes", PACKET, "refused"),
    Bound("name_levels", PACKET, "refused"),
    Bound("packet_bytes", PACKET, "closed, MQTT 0x95"),
    Bound("properties_bytes", PACKET, "closed, MQTT 0x95"),
    Bound("user_properties", PACKET, "closed, MQTT 0x95; HTTP 400"),
    Bound("connect_properties", PACKET, "refused, MQTT 0x95"),
    Bound("long_bytes", PACKET, "parts of it are signs of life"),
    Bound("topic_alias_maximum", CLIENT, "closed, MQTT 0x94", "mqtt.topic_alias_maximum"),
    Bound("receive_maximum", CLIENT, "closed, MQTT 0x93", "mqtt.receive_maximum"),
    Bound("max_session_expiry", CLIENT, "told this one", "mqtt.max_session_expiry", "0 s"),
    Bound("inflight", CLIENT, "the next delivery waits", "session.inflight"),
    Bound("prefetch", CLIENT, "of a queue or $share: another member"),
    Bound("inflight_bytes", CLIENT, "the next delivery waits", "session.inflight_bytes"),
    Bound("backlog_messages", CLIENT, "dropped, counted", "session.backlog_messages"),
    Bound("backlog_bytes", CLIENT, "dropped, counted", "session.backlog_bytes"),
    Bound("memory_log_bytes", ALL, "the oldest unrecorded are dropped"),
    Bound("kept_bytes", PACKET, "what a kept message counts"),
    Bound("subscriptions", CLIENT, "refused, MQTT 0x97", "session.subscriptions"),
    Bound("callbacks", ALL, "messages for the program are dropped"),
    Bound("calls_waiting", ALL, "nobody is heard until it is less"),
    Bound("pipelines", ALL, "one more is not shown in the status"),
    Bound("pipeline_bytes", ALL, "what says more of itself is not shown"),
    Bound("handed_over", ALL, "calling threads wait"),
    Bound("route_name_bytes", PACKET, "its route is not remembered"),
    Bound("audiences", ALL, "forgotten, named again"),
    Bound("routes", ALL, "forgotten, built again"),
    Bound("shortcuts", ALL, "forgotten, looked up again"),
    Bound("verdicts", ALL, "forgotten, asked again"),
    Bound("sightings", ALL, "a name that came once is forgotten"),
    Bound("plain_properties", ALL, "forgotten, read again"),
    Bound("clients", ALL, "as many as there may be files"),
    Bound("topic_ids", ALL, "status 1; of one user a fifth; long names: several", "smq.max_topics"),
    Bound(
        "delayed_messages", ALL, "0x97, counted; of one user a fifth", "limits.delayed_messages"
    ),
    Bound("retained", ALL, "not kept", "limits.retained_messages", "0"),
    Bound(
        "retained_bytes", ALL, "not kept: 0x97, 507; of one user a fifth",
        "limits.retained_bytes", "0",
    ),
    Bound("publishers", ALL, "their permissions are read again"),
    Bound("queue_messages", QUEUE, "507, MQTT 0x97", "queue.max_messages"),
    Bound("queue_bytes", QUEUE, "507, MQTT 0x97", "queue.max_bytes"),
    Bound("queues", ALL, "507, MQTT 0x97; of one user a fifth; long names: several"),
    Bound("share", USER, "one part of so many of what is for all"),
    Bound("lasting_sessions", ALL, "MQTT 0x97; of one user a fifth; long names: several"),
    Bound("subscribed_bytes", ALL, "0x97; half the memory at most; a fifth of one"),
    Bound("subscription_bytes", CLIENT, "what a subscription, binding, observed name counts"),
    Bound("queues_per_token", CLIENT, "429"),
    Bound("ended_queues", ALL, "their next ids are one number for all"),
    Bound("ids_ahead", ALL, "rows: requests are handed out when they are durable"),
    Bound("tokens", ALL, "429"),
    Bound("polls_per_token", CLIENT, "429"),
    Bound("calls_timed", ALL, "the oldest is in no figure of latency"),
    Bound("reader_seconds", CLIENT, "a service counts as away"),
    Bound("open_replies", ALL, "one more waits in its queue", "rpc.max_open"),
    Bound("sink_partitions", ALL, "HTTP 507; of one user a fifth"),
    Bound("reply_seconds", CLIENT, "an answer is too late", "rpc.reply_ttl"),
    Bound("gone_kept", ALL, "the oldest are forgotten"),
    Bound("topics_sampled", ALL, "the one that was quiet longest goes"),
    Bound("senders_sampled", ALL, "who was quiet longest goes"),
    Bound("sampled_name", PACKET, "counted with those that begin so"),
    Bound("level_bytes", CONNECTION, "the rest is not said, but counted"),
    Bound("tails", ALL, "503; of one user a fifth, then 429"),
    Bound("tailed", CLIENT, "counted, not shown"),
    Bound("tailed_bytes", PACKET, "the rest is not shown"),
    Bound("tail_bytes", CLIENT, "counted, not shown"),
    Bound("peeked_bytes", CONNECTION, "only their size is shown"),
    Bound("page_sessions", ALL, "who has no name, or was away longest; of one user a fifth"),
    Bound("page_seconds", USER, "logs in again"),
    Bound("page_idle_seconds", USER, "logs in again"),
    Bound("figures_seconds", SELF, "another point of the figures"),
    Bound("figures_kept", SELF, "the oldest points are forgotten"),
    Bound("refusals_kept", ALL, "the oldest are forgotten"),
    Bound("refusals_told", ALL, "counted, not told one by one"),
    Bound("said_a_second", ALL, "counted, not logged"),
    Bound("run_looked", CONNECTION, "the clock is looked at"),
    Bound("packets_looked", CONNECTION, "the clock is looked at"),
    Bound("turn_seconds", CONNECTION, "the rest waits for another turn"),
    Bound("turn_fetched_bytes", ALL, "who catches up waits for another turn"),
    Bound("commit_rows", SELF, "committed"),
    Bound("commit_bytes", SELF, "committed"),
    Bound("group_rows", SELF, "the rest is written next"),
    Bound("group_bytes", SELF, "the rest is written next"),
    Bound("commit_seconds", SELF, "committed"),
    Bound("congested_bytes", ALL, "publishers wait"),
    Bound("flooded_bytes", ALL, "everybody waits"),
    Bound("segment_bytes", SELF, "a new segment begins", "journal.segment_bytes"),
    Bound("segment_seconds", SELF, "a new segment begins", "journal.segment_seconds"),
    Bound("retain_seconds", SELF, "older rows go", "journal.retain_seconds"),
    Bound(
        "retain_bytes", SELF, "the oldest segments go", "journal.retain_bytes", "1/5 of the disk"
    ),
    Bound(
        "keep_free_bytes", SELF, "what stays is refused: 0x97, 507", "journal.keep_free_bytes",
        "3 segments, 5 %",
    ),
    Bound("clock_behind", SELF, "time begins again"),
    Bound("growth_least", SELF, "zeros ahead"),
    Bound("growth_most", SELF, "zeros ahead"),
    Bound("growth_behind_bytes", SELF, "no zeros ahead behind a larger frame"),
    Bound("scarce_users", SELF, "counted less"),
    Bound("scarce_places", SELF, "counted together"),
    Bound("reserve_bytes", SELF, "kept free"),
    Bound("frame_bytes", SELF, "another frame begins"),
    Bound("frame_cache_bytes", SELF, "the oldest are read again"),
    Bound("history_messages", CLIENT, "refused; the oldest are left out"),
    Bound("history_bytes", CLIENT, "the oldest are left out, which is said"),
    Bound("history_row", CLIENT, "counts for history_bytes"),
    Bound("history_seconds", CLIENT, "looked no further back, which is said"),
    Bound("history_stalled", CLIENT, "its place is another's who asks"),
    Bound("history_asked", ALL, "MQTT 0x97, HTTP 429; of one user a fifth"),
    Bound("history_idle", SELF, "the process that reads history ends"),
    Bound("segment_names", SELF, "no list of its names: it is looked through"),
    Bound("cluster_frame_bytes", SELF, "another frame begins"),
    Bound("cluster_record_bytes", SELF, "refused"),
    Bound("cluster_beat_seconds", SELF, "a sign of life"),
    Bound("cluster_refused_seconds", SELF, "tried again: NATS does not let this node in"),
    Bound("cluster_dead_seconds", SELF, "a node counts as gone"),
    Bound("cluster_stood_seconds", SELF, "what is due waits until others were heard"),
    Bound("cluster_mark_seconds", SELF, "wills of who was lost are said"),
    Bound("cluster_clock_seconds", SELF, "a node is refused"),
    Bound("cluster_window", CLIENT, "the next waits for an answer"),
    Bound("cluster_passed", CLIENT, "kept at the publisher's node, too"),
    Bound("cluster_passed_bytes", CLIENT, "kept at the publisher's node, too"),
    Bound("cluster_passed_seconds", CLIENT, "kept at the publisher's node, too"),
    Bound("cluster_kept_bytes", CLIENT, "the rest goes in another record"),
    Bound("cluster_lent", CLIENT, "the rest waits at the queue's home"),
    Bound("cluster_lent_most", CLIENT, "no more, however fast they go"),
    Bound("cluster_lent_seconds", CLIENT, "fewer are lent"),
    Bound("cluster_topics", ALL, "the one said longest ago is looked at anew"),
    Bound("cluster_look", SELF, "the rest at the next look"),
    Bound("cluster_piece", CLIENT, "the rest comes in the next turn"),
    Bound("cluster_kept", CLIENT, "publishers are refused; of one user a fifth"),
    Bound("cluster_feed", SELF, "the rest comes later"),
    Bound("cluster_anew", ALL, "the oldest are forgotten"),
    Bound("cluster_left", ALL, "the oldest are forgotten"),
    Bound("cluster_long", CLIENT, "a digest is remembered"),
    Bound("cluster_names", SELF, "the oldest are forgotten"),
    Bound("cluster_run", SELF, "refused"),
    Bound("cluster_frame_messages", SELF, "refused"),
    Bound("cluster_aside_bytes", SELF, "dropped, counted; what is kept is sent again"),
    Bound("cluster_whole", SELF, "another record begins; refused"),
    Bound("cluster_whole_bytes", SELF, "another record begins; refused"),
    Bound("cluster_holds_bytes", SELF, "without what has long names; then not told"),
    Bound("cluster_more", SELF, "refused"),
    Bound("cluster_slice", SELF, "others are heard first"),
    Bound("cluster_unheard_bytes", SELF, "lost, asked for again"),
    Bound("cluster_way_bytes", CONNECTION, "nothing more is read from it"),
    Bound("cluster_copy_piece", SELF, "another message begins"),
    Bound("cluster_copy_heads", SELF, "of older pieces nobody looks"),
    Bound("cluster_copy_gather", SELF, "the next group waits for an answer"),
    Bound("cluster_copy_gather_seconds", SELF, "the next group goes"),
    Bound("cluster_copy_return_seconds", SELF, "the next group goes"),
    Bound("cluster_copy_patience", SELF, "the next group goes"),
    Bound("cluster_copy_far_seconds", SELF, "the next group goes"),
    Bound("cluster_copy_seconds", SELF, "the stream is asked"),
    Bound("cluster_quorum_seconds", SELF, "what would last is refused"),
    Bound("cluster_answer_seconds", CLIENT, "answered 503, a poll with nothing"),
    Bound("cluster_heir_seconds", SELF, "another node takes over"),
    Bound("cluster_return_seconds", SELF, "another node takes over"),
    Bound("cluster_adopt_seconds", SELF, "what an heir says that a message will take"),
    Bound("cluster_busy_seconds", SELF, "an heir counts as gone"),
)  # fmt: skip

HEAD: Final = ("bound", "value", "of one", "at it", "setting")


def table(settings: Settings) -> list[tuple[str, ...]]:
    """The head and the rows, as they are printed."""
    rows = [
        (one.name, _said(one, settings), one.whose, one.at_it, one.setting or "fixed")
        for one in BOUNDS
    ]
    return [HEAD, *rows]


def _said(one: Bound, settings: Settings) -> str:
    value = one.value(settings)
    if not value and one.setting:
        return one.zero
    if one.name.endswith(("_seconds", "_again", "_expiry", "_idle", "_burst", "_stalled")):
        return f"{value:g} s" if value < 1_000_000 else f"{value:,.0f} s"
    for unit, size in (("MiB", limits.MIB), ("KiB", limits.KIB)):
        if _is_size(one.name) and value >= size and not value % size:
            return f"{value // size:,} {unit}"
    return f"{value:,}"


def _is_size(name: str) -> bool:
    sizes = ("link_choked", "link_paused", "hold_back_from", "send_buffer", "segment_names")
    return name.endswith(("_bytes", "_properties", "_least", "_most")) or name in sizes


def text(settings: Settings) -> str:
    """The table in columns."""
    rows = table(settings)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(lines) + "\n"
