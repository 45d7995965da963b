"""The bounds of connections that are settings: how much, how many, how fast.

Part of `settings`, which everybody else reads them from. `core.limits` has the others.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from hubbub.config.identity import because as _because

Count = Annotated[int, Meta(ge=1)]
CountOrNone = Annotated[int, Meta(ge=0)]
Rate = Annotated[int, Meta(ge=0)]


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
    retained_bytes: Annotated[
        CountOrNone,
        _because(
            "of payload of all retained messages, one user a fifth; what is over is not kept, and "
            "who can be told is told. Each snapshot is written with all of them"
        ),
    ] = 4096 * 1024 * 1024
    waiting_bytes: Annotated[
        Count,
        _because(
            "what all connections together may keep waiting: messages half sent, requests not "
            "answered, answers not read. Over it the heaviest of the user with the most is ended, "
            "and so on until an eighth is free"
        ),
    ] = 512 * 1024 * 1024
    hold_back_seconds: Annotated[
        Annotated[float, Meta(ge=0, le=60)],
        _because(
            "for so long a publisher waits for the only reader of its messages of QoS 0, when that "
            "is slower; what comes after is dropped until the reader has caught up. 0 always drops"
        ),
    ] = 5.0
    hold_back: Annotated[
        tuple[str, ...],
        _because("topic filters where publishers wait for the slowest of many readers, too"),
    ] = ()
    client_messages_per_second: Annotated[
        Rate,
        _because(
            "messages that one client may publish. Over it, as over each of the four, the hub "
            "reads what it sends more slowly: nothing is lost and nobody is ended. 0 sets no bound"
        ),
    ] = 0
    client_bytes_per_second: Annotated[
        Rate, _because("bytes that one client may send, whatever they say; 0 sets no bound")
    ] = 0
    user_messages_per_second: Annotated[
        Rate,
        _because(
            "messages of all connections of one user together; of one address, where nobody "
            "checks who a client is. 0 sets no bound"
        ),
    ] = 0
    user_bytes_per_second: Annotated[
        Rate, _because("bytes that all these connections may send together; 0 sets no bound")
    ] = 0
    burst_seconds: Annotated[
        Annotated[float, Meta(ge=0, le=3600)],
        _because(
            "who sent less for a while may send so many seconds' worth at once: devices report "
            "in bursts"
        ),
    ] = 1.0
    address_connections: Annotated[
        CountOrNone,
        _because(
            "open connections of one address (IPv6: of one network of 64 bits), whatever they "
            "speak; one more is refused. 0 sets no bound: there may be a whole company behind one"
        ),
    ] = 0
    address_connections_per_second: Annotated[
        Rate,
        _because(
            "connections that one address may open, a second's worth of them at once; one more is "
            "refused and may try again. 0 sets no bound"
        ),
    ] = 0
    user_connections: Annotated[
        CountOrNone,
        _because(
            "open connections of one user whose name was checked; a client that comes back is let "
            "in, and its older connection ends. Web pages count by address alone. 0 sets no bound"
        ),
    ] = 0
    unbounded_addresses: Annotated[
        tuple[str, ...],
        _because(
            "addresses or networks to which the bounds by address do not apply: what runs on this "
            "machine is not what they are for. Leave none where a balancer here says no PROXY"
        ),
    ] = ("127.0.0.0/8", "::1")
    busy_poll_us: Annotated[
        Annotated[int, Meta(ge=0, le=1_000)],
        _because(
            "microseconds in which the next message is looked for before the hub sleeps, while "
            "messages follow so closely; waking takes longer. 0 always sleeps; so does one core."
        ),
    ] = 100
