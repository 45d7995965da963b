"""Settings of a hub that is a node of a cluster.

Part of `settings`, which has all others; declared here because the cluster reads them.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from hubbub.config.identity import because

Page = Annotated[str, Meta(pattern=r"^https?://[A-Za-z0-9._:\[\]-]+(/[!-~]*)?$")]
# What clients of MQTT 5 can connect to (Server Reference, 4.11): no URL.
PLACE: Final = re.compile(r"([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
Word = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{0,60}$")]


class Cluster(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Several hubs as one, over NATS."""

    url: Annotated[
        tuple[str, ...],
        because(
            "the NATS servers, nats://HOST:PORT or tls://USER:PASSWORD@HOST:PORT; several of one "
            "NATS cluster are tried in turn. Empty: this hub is alone"
        ),
    ] = ()
    name: Annotated[
        Word, because("of this node, its own in the cluster, always the same: letters, digits")
    ] = ""
    group: Annotated[
        Word, because("of the cluster: hubs of one group find one another, others do not")
    ] = "hubbub"
    credentials: Annotated[
        str, because("a file with the credentials of a NATS account, as `nsc` writes it")
    ] = ""
    ca: Annotated[
        str, because("the authority of the servers' certificates, instead of the system's")
    ] = ""
    certificate: Annotated[str, because("this node's own, for servers that ask for one")] = ""
    key: Annotated[str, because("its private key; empty means in the same file")] = ""
    keep: Annotated[
        int,
        Meta(ge=0, le=0xFFFF_FFFE),
        because(
            "seconds for which messages of QoS 1 and 2 wait for a node that is away, for the "
            "sessions there that last; the node then begins anew"
        ),
    ] = 7 * 86_400
    place: Annotated[
        str,
        Meta(pattern="^[!-~]{0,255}$"),
        because(
            "HOST:PORT, or HOST, where MQTT clients reach this node: another node that stops tells "
            "its clients of 5.0 so, but for those whose session lasts there. Empty: none"
        ),
    ] = ""
    counts: Annotated[
        Literal["node", "cluster"],
        because(
            'whom "how many subscribe to this topic" counts: the clients of this node, as SMQ\'s '
            "reference does, or those of all nodes"
        ),
    ] = "node"
    copies: Annotated[
        Literal["auto", "0", "1", "3"],
        because(
            "servers of NATS that have this node's log before anything is acknowledged, so that "
            "another node goes on with its sessions and queues when it dies: auto is 3, or 1 where "
            "there are fewer servers, if they have JetStream; 0 is none"
        ),
    ] = "0"
    monitor: Annotated[
        tuple[Page, ...],
        because(
            "the monitoring ports of those servers, http://HOST:8222, each of its own: with copies "
            "they are asked how often they sync, and the status says whether what is acknowledged "
            "survives a loss of power of all of them. Empty: that is unknown"
        ),
    ] = ()

    def complaint(self) -> str:
        """What cannot be used of it; "" if nothing is wrong."""
        if not self.place or PLACE.fullmatch(self.place):
            return ""
        host = self.place.partition("://")[2].partition("/")[0] or "broker.example.org:1883"
        return (
            f"cluster.place = {self.place!r} cannot be used: expected HOST:PORT or HOST, [ADDRESS] "
            f"of IPv6, where MQTT clients are told to go, as {host!r}: say it so, or leave it out"
        )
