"""Where a connection comes from, as bounds count it: by those who can have many addresses. No I/O.

Used by the room for strangers, by whoever counts wrong logins, and to know a balancer.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache


def source_of(address: str) -> str:
    """An address of version 4 is one; of version 6 a network of 64 bits is, as a home has it."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address)
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(found) >> 64 << 64))


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def is_among(address: str, networks: Iterable[Network]) -> bool:
    """Whether an address belongs to one of them; what is no address belongs to none."""
    found = _parsed(address) if networks else None
    return found is not None and any(found in network for network in networks)


@lru_cache(1_000)  # of those who come a thousand times a second, each time
def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """One of version 4 inside version 6 is the one it is."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found
