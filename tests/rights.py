"""Rights as the lines of a permissions file give them, without the file."""

from __future__ import annotations

from hubbub.auth.acl import AclRights, Rule
from hubbub.core.caches import Caches
from hubbub.core.rights import ADMIN, READ, WRITE

_ACCESS = {"read": READ, "write": WRITE, "readwrite": READ | WRITE, "manage": ADMIN, "deny": 0}


def ruled(*lines: str) -> AclRights:
    """`ruled("read a/#", "deny a/b")`: refusals first, as in a file."""
    rules = []
    for number, line in enumerate(lines, 1):
        access, _, topic_filter = line.partition(" ")
        rules.append(Rule(_ACCESS[access], topic_filter, f"acl:{number} ({line})"))
    rules.sort(key=lambda rule: rule.access != 0)
    return AclRights(rules, Caches(1_000))


