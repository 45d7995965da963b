"""Of which node of a cluster a data directory is, and since when: the file `node` in it.

Others know sessions, queues and messages by the name of their node. Under another name the same
ones would be there twice: so a directory is one node's, and a start under another name is refused.
A backup has no such file: put back it is as of a node that begins. Called by the node.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from hubbub.cluster.membership import Membership
from hubbub.errors import SettingError
from hubbub.journal.files import write_whole

FILE: Final = "node"


def born(directory: Path, name: str) -> int:
    """Since when it is that node's (microseconds since 1970), 0 if it is nobody's so far."""
    try:
        former, _, since = (directory / FILE).read_text().strip().partition(" ")
        found = int(since)
    except FileNotFoundError:
        return 0
    except ValueError:
        raise SettingError(
            f"{directory / FILE} is no name of a node and a time: remove it if the directory is "
            f"that of node {name!r}"
        ) from None
    if former != name:
        raise SettingError(
            f"the directory {directory} is that of node {former!r} of a cluster, and cluster.name "
            f"is {name!r}: others would have its sessions and queues twice. Start it as {former!r};"
            f" how a node is renamed is in docs/guide/cluster.md"
        )
    return found


def look(directory: Path, membership: Membership) -> None:
    """SettingError if it is another node's."""
    membership.born = born(directory, membership.name) or membership.born


def note(directory: Path, membership: Membership) -> None:
    """It is that node's from now on: it has joined, so nobody else has its name."""
    if not (directory / FILE).exists():
        write_whole(directory / FILE, f"{membership.name} {membership.born}\n".encode())
