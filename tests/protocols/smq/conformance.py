"""What real SMQ clients rely on, row by row, and the tests that hold it.

`python -m tests.protocols.smq.conformance > docs/reference/smq-conformance.md` writes the page;
`test_conformance.py` fails when the page differs or a test is missing. A probe `raw: title` is
one of the parametrised `test_raw_probes.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

CONNECTION: Final = "test_connection"
SESSION: Final = "test_session"
PORT: Final = "test_port"
CODEC: Final = "test_codec"
WEB: Final = "test_websocket_probes"
CROSSING: Final = "test_crossing"
CLIENT: Final = "test_client"
BROWSER: Final = "test_browser"
TRACES: Final = "test_traces"
ANY: Final = "test_any_bytes"
DOOR: Final = "test_every_door"
REAL: Final = "test_real_clients"
HUB: Final = "test_hub"
LIFE: Final = "test_hub_life"
OPTIONS: Final = "test_hub_options"
PROBES: Final = "test_hub_probes"
UPGRADE: Final = "test_upgrade"
LISTENER: Final = "test_listener"

Row = tuple[str, str, tuple[str, ...]]


def _in(file: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{file}::test_{name}" for name in names)


def _raw(*titles: str) -> tuple[str, ...]:
    return tuple(f"raw: {title}" for title in titles)


FRAMES: Final[tuple[Row, ...]] = (
    ("length", "u16 with its own two bytes; 3 to 65535; split and joined frames are put right",
     _in(CODEC, "frames_come_out_whole_however_they_were_split",
         "the_largest_frame_is_what_the_length_can_say")
     + _raw("packet split in single bytes", "coalesced 3 pings")),
    ("length 0, 1, 2", "closes without a word",
     _in(CONNECTION, "a_length_below_3_closes_the_connection")
     + _raw("packet len 0", "packet len 2")),
    ("numbers, names, payloads", "big-endian; names and payloads are any bytes",
     _in(CODEC, "numbers_and_rest_come_back", "uids_and_credentials_are_any_bytes")
     + _in(CONNECTION, "any_name_is_a_literal_topic")),
    ("any split of the bytes", "is the same conversation",
     _in(ANY, "any_split_of_the_bytes_is_the_same_conversation")),
    ("any bytes", "are taken or end that connection only",
     _in(ANY, "garbage_raises_nothing_but_protocol_errors")
     + _in(PORT, "bad_bytes_end_that_connection_only")),
    ("WebSocket", "one message a frame, answered in binary frames",
     _in(WEB, "publish_is_heard_in_a_binary_frame")),
)  # fmt: skip

ENTRY: Final[tuple[Row, ...]] = (
    ("any path and method", "GET, POST and others, HTTP/1.0 and 1.1, header names in any case",
     _in(PORT, "any_path_method_and_version_will_do")),
    ("C clients", "hear no HTTP at all: Init comes first",
     _in(PORT, "a_c_client_hears_init_first_and_nothing_of_http")),
    ("SendSmqHttpResponse: true", "200 with SmqBroker and no length; any other value: nothing",
     _in(TRACES, "a_bootstrap_request_is_answered_as_by_the_real_hub")),
    ("Java", "gets head and Init in two writes, two TLS records",
     _in(CONNECTION, "the_http_response_and_init_are_two_writes")
     + _in(PORT, "java_gets_the_head_and_init_in_two_tls_records")),
    ("WebSocket key", "without Upgrade is enough; `SendSmqHttpResponse: true` beside it: 200, raw",
     _in(TRACES, "a_bootstrap_request_is_answered_as_by_the_real_hub")
     + _in(LISTENER, "who_asks_for_the_plain_socket_gets_it_though_it_looks_like_a_websocket")),
    ("neither header", "404 of `Hub.connect`; `is_smq` says it beforehand",
     _in(UPGRADE, "people_get_a_page_at_the_same_url")),
    ("the body of a POST", "is not SMQ", _in(CONNECTION, "the_body_of_a_post_is_skipped")),
    ("bytes behind the head", "are taken",
     _in(PORT, "what_a_client_sends_at_once_with_its_request_is_not_lost")),
    ("TLS", "ends at the hub: a page on wss and plain devices reach each other",
     _in(PORT, "a_browser_on_wss_reaches_two_plain_devices_at_once_and_one_answers")
     + _in(BROWSER, "a_page_over_tls_reaches_two_plain_devices_at_once")),
)  # fmt: skip

HANDSHAKE: Final[tuple[Row, ...]] = (
    ("Init", "version 1, a seed, the client's address, never shorter than 3 bytes",
     _in(CONNECTION, "init_says_version_a_seed_and_the_clients_address",
         "the_address_in_init_is_never_too_short_for_c_clients")),
    ("Connect 1 and 2", "both layouts; version 2 bounds single writes",
     _in(CODEC, "the_connect_of_a_c_client_is_version_2_with_a_number_more",
         "the_connect_of_a_python_client_is_version_1")
     + _in(SESSION, "the_largest_write_of_a_c_client_bounds_writes_and_drops_nothing")
     + _raw("v1 connect", "v2 connect")),
    ("no credentials field", "counts as empty",
     _in(CODEC, "a_missing_credentials_field_counts_as_empty")),
    ("Connack 1", "a short uid, another version, another message, lying lengths",
     _in(CONNECTION, "a_wrong_connect_gets_connack_1_and_the_connection_closes")
     + _in(CODEC, "a_malformed_connect_says_what_is_wrong", "any_connect_is_read_or_refused")
     + _raw("uid of 5 bytes", "version 3", "first msg not Connect", "truncated Connect",
            "Connect body only version")),
    ("Connack 2", "no Connect within 4 seconds",
     _in(CONNECTION, "without_connect_within_4_seconds_connack_2")
     + _raw("connect read timeout")),
    ("Connack 3", "wrong credentials, with a text",
     _in(CONNECTION, "refused_credentials_get_connack_3_with_the_reason")
     + _in(DOOR, "smq", "smq_with_the_password")),
    ("Connack 4, 5, 6", "certificate missing or refused, access denied, in the gate's words",
     _in(CONNECTION, "each_reason_of_a_gate_has_its_code")),
    ("uid and credentials", "are binary",
     _in(CONNECTION, "a_binary_uid_and_binary_credentials_are_taken")),
    ("the same uid again", "the older gets Disconnect `reconnect`; the newer has its number",
     _in(CONNECTION, "the_same_uid_again_kicks_the_older_and_keeps_the_etid",
         "after_a_clean_close_the_same_uid_gets_another_etid")
     + _raw("same uid connects a second time", "reconnect after clean close")),
    ("order", "the older goes, Connack, then `onconnect`: its messages come behind the welcome",
     _in(CONNECTION, "the_same_uid_again_kicks_the_older_and_keeps_the_etid")
     + _in(OPTIONS, "a_message_of_onconnect_comes_after_the_welcome")),
    ("while the gate decides", "bytes are kept, and not without end",
     _in(CONNECTION, "bytes_are_kept_until_the_gate_has_decided",
         "not_everything_is_kept_while_the_gate_decides")),
)  # fmt: skip

NAMES: Final[tuple[Row, ...]] = (
    ("acks", "status, number, and the name byte for byte",
     _raw("subscribe", "create existing", "create new", "createsub")),
    ("topics and sub-topics", "two spaces of numbers, durable",
     _in(CONNECTION, "topic_and_subtopic_ids_live_as_long_as_the_hub")
     + _in(SESSION, "names_keep_their_numbers_through_journal_and_snapshot")
     + _in(PORT, "a_new_topic_id_survives_kill_9")),
    ("Subscribe again", "the same Suback, no Change",
     _in(CONNECTION, "a_second_subscribe_is_acknowledged_again_without_a_change")
     + _raw("dup subscribe", "C resubscribes")),
    ("ids taken away", "by `hubbub remove-id`, the API or the hub: unknown from then on, and not "
     "while somebody is subscribed by it (the original cannot)",
     _in("test_ids", "who_only_publishes_by_a_number_that_is_gone_reaches_nobody",
         "one_that_is_in_use_stays")),
    ("empty and wild names", "are literal; a sub-topic without a name has a number too",
     _raw("empty topic subscribe", "topic with wildcard")
     + _in(CONNECTION, "createsub_without_a_name_gets_a_number_too")),
    ("denied", "status 1, number 0: permission, `$SYS/`, too many",
     _in(CONNECTION, "rights_deny_subscribe_create_and_publish",
         "create_under_sys_is_denied_and_subscribe_allowed", "too_many_names_are_denied",
         "how_many_subscriptions_is_a_setting")),
    ("Unsubscribe", "no answer; an unknown number is ignored",
     _raw("C unsubscribes", "C unsubscribes again", "C unsubscribe unknown tid")),
    ("a retained message", "comes right after the Suback of a new subscription",
     _in(SESSION, "the_retained_message_comes_right_after_the_suback_once")),
)  # fmt: skip

MESSAGES: Final[tuple[Row, ...]] = (
    ("Publish", "is relayed byte for byte, to its own sender too, sub-topic untouched",
     _in(CONNECTION, "a_publish_reaches_subscribers_byte_for_byte",
         "a_subscriber_gets_its_own_messages")
     + _raw("publish B->alpha sub1", "publish by a subscriber", "publish unknown subtid",
            "publish empty payload")),
    ("to a number", "anybody can publish to any client, itself included",
     _in(CONNECTION, "anybody_can_publish_to_an_etid")
     + _raw("publish to etid of A by B", "publish to own etid")),
    ("nobody there", "is dropped without a word, and counted; a guessed number is nobody's",
     _in(CONNECTION, "what_nobody_gets_is_dropped_silently", "a_random_number_is_nobodys")
     + _raw("publish to unknown tid", "publish to tid 0")),
    ("a wrong sender", "Disconnect `corrupt frame`, close",
     _in(CONNECTION, "a_wrong_sender_is_told_corrupt_frame_and_closed")
     + _raw("wrong ptid in Publish")),
    ("the largest payload", "65,520 bytes over a raw socket; more is never sent to one",
     _in(CONNECTION, "the_largest_payload_passes")
     + _in(WEB, "the_largest_raw_frame_reaches_a_websocket_and_back",
           "what_a_raw_frame_cannot_carry_is_not_sent_to_a_raw_device")
     + _raw("max payload 0xFFF0")),
    ("PubFrag", "parts with number 0, then one with the number, whose fields count",
     _in(CONNECTION, "fragments_arrive_as_one_publish", "the_sender_of_the_last_fragment_counts",
         "other_messages_may_come_between_fragments")
     + _raw("PubFrag: 3 fragments", "PubFrag: single final fragment",
            "PubFrag: empty final fragment", "PubFrag: wrong ptid in the first",
            "PubFrag: subtid in the first", "PubFrag interleaved", "PubFrag wrong ptid in final")),
    ("PubFrag's limits", "65,507 bytes; one more is dropped; above 65,520 it closes",
     _in(CONNECTION, "fragments_of_exactly_the_limit_pass_and_one_byte_more_is_dropped",
         "fragments_beyond_the_largest_payload_close_the_connection")
     + _raw("PubFrag total exactly", "PubFrag payload one more", "PubFrag overflow")),
    ("PubFrag over a WebSocket", "closes", _in(CONNECTION, "fragments_over_a_websocket_close_it")),
    ("a slow subscriber",
     "beside others: loses messages, counted, and slows nobody; alone: its publisher waits, 5 s",
     _in(PORT, "a_subscriber_that_does_not_read_loses_messages_and_slows_nobody")
     + _in(SESSION, "a_full_link_drops_messages_and_says_so")),
)  # fmt: skip

OBSERVING: Final[tuple[Row, ...]] = (
    ("a topic", "Change with the count at once, also when asked again, then after each change; of "
     "more than 1,000 who subscribe or observe up to four times a second",
     _in(CONNECTION, "observing_a_topic_answers_at_once_and_again",
         "a_change_follows_each_subscribe_unsubscribe_and_death")
     + _raw("observe named topic", "2nd observe of same topic", "third client subscribes alpha",
            "C subscribes again then dies", "observe a topic with zero subscribers")),
    ("a client", "nothing, then one Change 0; a dead or unknown number: 0 at once",
     _in(CONNECTION, "an_observed_client_says_0_once_when_it_goes",
         "one_observer_of_ten_thousand_clients_hears_of_each_once_when_they_go")
     + _raw("observe etid of C", "observe dead/unknown etid")),
    ("oneself, the hub", "nothing",
     _in(CONNECTION, "observing_oneself_or_the_hub_says_nothing")
     + _raw("observe own etid", "observe the server etid 1")),
    ("order", "Change before Suback; a client's topics before the client",
     _in(CONNECTION, "the_change_comes_before_the_suback",
         "the_topic_changes_come_before_the_clients_own")),
    ("who counts", "connected clients of every protocol, each once",
     _in(CROSSING, "observe_counts_each_connected_client_once")),
    ("Unobserve", "by the only observer leaves subscribers alone (the original forgets them)",
     _in(CONNECTION, "unobserve_by_the_only_observer_leaves_the_subscribers_alone")
     + _raw("unobserve with TWO observers", "KNOWN REFERENCE BUG: sole observer unobserves")),
)  # fmt: skip

ENDING: Final[tuple[Row, ...]] = (
    ("Ping", "is answered; a Pong nobody asked for is ignored",
     _in(CONNECTION, "ping_is_answered_and_an_unsolicited_pong_ignored")
     + _raw("ping -> pong", "unsolicited pong ignored")),
    ("silence", "the hub never pings: TCP's keep-alive after 230 s finds out who is gone",
     _in(HUB, "setkeepalive_is_for_connections_from_now_on")
     + _in(OPTIONS, "keepidle_and_keepintv")),
    ("Disconnect of a client", "closes in order, without an answer",
     _in(CONNECTION, "a_disconnect_closes_in_order_and_without_an_answer")
     + _raw("Disconnect from client", "Disconnect with payload")),
    ("what no client may send", "closes: hub's messages, unknown types, short bodies",
     _in(CONNECTION, "what_a_client_must_not_send_closes_the_connection")
     + _raw("short Publish", "short Unsubscribe", "short Observe", "unknown msg 10",
            "unknown msg 200", "Connect again when connected", "server-only msg Suback")),
    ("SIGTERM", "a bare close: a Disconnect would tell devices never to return",
     _in(CONNECTION, "when_the_hub_stops_no_disconnect_tells_devices_to_stay_away")
     + _in(PORT, "when_the_hub_is_told_to_stop_clients_see_a_bare_close")),
    ("WebSocket close codes", "1000 for an end of SMQ's, 1002 for an unmasked frame",
     _in(WEB, "what_ends_a_websocket_ends_it_with_the_same_code",
         "a_refusal_is_said_and_closed")),
    ("WebSocket text, pings, fragments", "taken as bytes; answered; put together",
     _in(WEB, "pings_of_both_levels_are_answered_and_pongs_are_not",
         "a_fragmented_message_is_taken", "a_large_publish_passes_between_websockets")),
)  # fmt: skip

CLIENTS: Final[tuple[Row, ...]] = (
    ("C", "a recorded session; exact lengths of Init, Connack, acks, Change, Ping and Pong",
     _in(TRACES, "a_real_client_hears_what_it_heard_from_the_real_hub")
     + _in(REAL, "frames_have_the_lengths_that_c_clients_check")),
    ("Python", "a recorded session",
     _in(TRACES, "a_real_client_hears_what_it_heard_from_the_real_hub")),
    ("Java", "200 with SmqBroker, no type that it does not know, numbers above 2³¹",
     _in(REAL, "a_java_client")
     + _in(PORT, "java_gets_the_head_and_init_in_two_tls_records")),
    ("Lua", "no ack for a name that it did not ask for; a Pong in time",
     _in(REAL, "a_lua_client")),
    ("JavaScript", "comes back and asks for everything again, by name, unless told not to",
     _in(REAL, "a_javascript_client_that_comes_back_asks_for_everything_again",
         "a_javascript_client_comes_back_unless_it_was_told_not_to")
     + _in(PORT, "a_browsers_websocket_speaks_smq")),
)  # fmt: skip

API: Final[tuple[Row, ...]] = (
    ("on the wire", "each call does what the original did, as recorded",
     _in(PROBES, "the_hubs_api_does_on_the_wire_what_the_original_did")),
    ("`connect`, `is_smq`", "takes over a web request; `arg` reaches `info.arg`; the query is data",
     _in(UPGRADE, "devices_connect_through_aiohttp", "devices_connect_through_asgi",
         "people_get_a_page_at_the_same_url")),
    ("`create`, `createsub`", "a number for good, the wished one if it is free; nobody is asked",
     _in(HUB, "create_gives_a_number_for_good",
         "create_takes_the_number_that_is_asked_for_if_it_is_free",
         "createsub_has_numbers_of_its_own")
     + _in(OPTIONS, "permittop_is_asked_once_a_connection_and_name",
           "data_keeps_names_and_no_data_keeps_nothing")),
    ("`publish`", "bytes, text, JSON; names, topic ids, clients; on behalf of a client",
     _in(HUB, "publish_takes_bytes_text_and_json", "publish_creates_names_and_goes_to_numbers",
         "publish_on_behalf_of_a_client")),
    ("`pubon`", "from one connected client to another",
     _in(HUB, "pubon_needs_two_connected_clients")),
    ("`subscribe`, `unsubscribe`", "by sub-topic, with a catch-all, `self`, JSON",
     _in(HUB, "subscriptions_differ_by_subtopic", "self_is_the_hubs_own_number",
         "json_is_decoded_and_what_is_none_goes_to_the_default",
         "unsubscribe_removes_every_function_of_a_topic")),
    ("`onmsg`", "for subscriptions without a function, and JSON that is none",
     _in(OPTIONS, "onmsg_is_the_default_function")),
    ("`observe`, `unobserve`", "by name and number; a client once, with 0",
     _in(HUB, "observe_counts_clients_of_every_protocol", "observe_by_number",
         "an_observed_client_answers_once")),
    ("`gettid`, `rndtid`", "1, or random", _in(OPTIONS, "rndtid_makes_the_hubs_number_random")),
    ("`queuesize`", "free and used places for calls from other threads",
     _in(HUB, "the_hand_over_queue_is_bounded", "calls_from_other_threads_are_made_on_the_loop")),
    ("`peers`, `sock2peer`, `etid2peer`", "the hub's own too; attributes of your own stay",
     _in(HUB, "peers_and_their_ways_back") + _in(LIFE, "a_loop_over_peers_says_address_and_uid")),
    ("`topics`, `subtopics`", "numbers and names",
     _in(LIFE, "a_loop_over_topics_and_subtopics")),
    ("`setkeepalive`", "for connections from now on",
     _in(HUB, "setkeepalive_is_for_connections_from_now_on")),
    ("`shutdown`", "all come back; with a text none does; one client alone; another hub takes over",
     _in(LIFE, "shutdown_brings_clients_back_to_the_same_hub",
         "clients_come_back_to_a_hub_that_takes_over",
         "shutdown_with_a_text_sends_clients_away_for_good",
         "shutdown_of_one_client_leaves_the_others_alone")),
    ("`authenticate`", "codes and texts, at once or later",
     _in(OPTIONS, "authenticate_is_asked_by_every_protocol", "refusals_have_a_code_and_a_text")),
    ("`permittop`, `permitsubtop`", "decide about names",
     _in(OPTIONS, "permittop_decides_for_every_protocol",
         "permitsubtop_is_asked_about_new_ones")),
    ("`onpublish`, `ondrop`", "decide about messages; hear of those nobody got",
     _in(OPTIONS, "onpublish_sees_and_decides_about_every_message",
         "ondrop_hears_what_nobody_got")),
    ("`onconnect`, `onclose`", "who came, who went and why",
     _in(OPTIONS, "onconnect_and_onclose_of_every_protocol", "onclose_says_why")),
    ("`readtmo`", "milliseconds until Connect",
     _in(OPTIONS, "readtmo_is_how_long_a_silent_client_may_stay")),
    ("several hubs", "share nothing", _in(HUB, "several_hubs_share_nothing")),
)  # fmt: skip

FAULTS: Final[tuple[Row, ...]] = (
    ("Unobserve by the only observer", "leaves the subscribers alone; there it loses them",
     _in(CONNECTION, "unobserve_by_the_only_observer_leaves_the_subscribers_alone")),
    ("a large payload from a WebSocket", "does not reach raw sockets; there the length wraps",
     _in(WEB, "what_a_raw_frame_cannot_carry_is_not_sent_to_a_raw_device")
     + _in(CROSSING, "what_a_raw_frame_cannot_carry_is_dropped_for_raw_sockets")),
    ("a malformed Connect", "Connack 1 and a close; there it hangs",
     _in(CONNECTION, "a_wrong_connect_gets_connack_1_and_the_connection_closes")
     + _in(PORT, "bad_bytes_end_that_connection_only")),
    ("an error in a function", "is logged and harms nothing; there it leaves a zombie",
     _in(HUB, "a_function_that_raises_harms_nothing")
     + _in(OPTIONS, "an_authenticate_that_raises_refuses")),
    ("`shutdown(None, etid)`", "ends that client; there everybody",
     _in(LIFE, "shutdown_of_one_client_leaves_the_others_alone")),
    ("`publish` with ptid", "is from that client; there it is ignored",
     _in(HUB, "publish_on_behalf_of_a_client")),
    ("a fragmented WebSocket message", "is put together; there it closes with 1003",
     _in(WEB, "a_fragmented_message_is_taken")),
)  # fmt: skip

OTHERS: Final[tuple[Row, ...]] = (
    ("SMQ → MQTT 5", "sub-topic as user property, sender as response topic",
     _in(CROSSING, "mqtt_5_sees_the_subtopic_and_whom_to_answer")),
    ("SMQ → MQTT 3.1.1", "topic and payload",
     _in(CROSSING, "mqtt_311_sees_topic_and_payload")),
    ("SMQ → queue", "a request if the sub-topic is `request`",
     _in(CROSSING, "a_queue_takes_it_as_a_request_if_the_subtopic_says_so")
     + _in(SESSION, "a_request_is_acknowledged_by_its_reply")),
    ("MQTT → SMQ", "the sender's number, the sub-topic from the property",
     _in(CROSSING, "a_publish_of_mqtt_has_the_senders_number",
         "a_subtopic_comes_back_from_mqtt_5")),
    ("a request of MQTT 5", "a reply id; the answer has its topic and correlation",
     _in(CROSSING, "a_request_of_mqtt_5_on_a_topic_is_answered_with_its_correlation")),
    ("a request of message-switch", "a reply id; the answer is a Response in the reply queue",
     _in(CROSSING, "an_answer_over_smq_is_a_response_in_the_reply_queue",
         "a_request_whose_service_left_is_given_to_another_protocol")),
    ("`$client/<id>`", "from every protocol to every protocol",
     _in(CROSSING, "a_publish_to_a_client_reaches_that_client")),
    ("HTTP → SMQ", "POST /publish/TOPIC", _in(CROSSING, "a_publish_over_http_is_seen")),
)  # fmt: skip

PARTS: Final = {
    "Frames": FRAMES, "The way in": ENTRY, "Handshake": HANDSHAKE, "Names": NAMES,
    "Messages": MESSAGES, "Observing": OBSERVING, "Pings and ends": ENDING,
    "Client libraries": CLIENTS, "Between protocols": OTHERS, "The hub's API": API,
    "Faults of the original that are not here": FAULTS,
}  # fmt: skip

HEAD: Final = """\
# What SMQ clients can rely on

The wire as real C, Java, JavaScript, Lua and Python clients use it, and the tests that hold it.
This page is made of `tests/protocols/smq/conformance.py`. "raw: …" is a probe of
`test_raw_probes.py`: hand-made frames, answered as the original hub answered them, except where
that was a fault.
"""


def page() -> Iterator[str]:
    yield HEAD
    for title, rows in PARTS.items():
        yield f"## {title}\n"
        yield "| what | how it is here | held by |"
        yield "|---|---|---|"
        for what, how, tests in rows:
            held = ", ".join(f"`{test}`" for test in tests)
            yield f"| {what} | {how} | {held} |"
        yield ""


if __name__ == "__main__":
    print("\n".join(page()).rstrip())
