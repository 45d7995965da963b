"""Where a connection comes from, as bounds count it: by those who can have many addresses. No I/O.

Used by the room for strangers, and by whoever counts wrong logins.
"""

from __future__ import annotations

import ipaddress


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
