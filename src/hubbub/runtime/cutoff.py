"""Bridges that are cut off by hand, and not connected again before somebody says so.

    cut off ──> the connection ends, no attempt is made ── resumed ──> as ever

What goes out waits meanwhile, as while the broker cannot be reached. A restart keeps it so: the
names are in a file of the directory, which `hubbub doctor` reads and a backup has, too. A hub
without a journal has none, and connects all of its bridges when it starts. Called by the node and
the web application.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from hubbub.errors import SettingError
from hubbub.journal.files import write_whole
from hubbub.journal.segments import Directory
from hubbub.journal.writer import Journal
from hubbub.protocols import registry
from hubbub.runtime.dialer import Dialer, Host

log = logging.getLogger("hubbub.dialer")

REASON: Final = "cut off by hand"
_BYTES: Final = 1 << 20


def names_in(directory: Path | None) -> list[str]:
    """Those of the file; none if there is no such file, or it is none of ours."""
    if directory is None:
        return []
    place = Directory(directory).cut_off
    try:
        with place.open("rb") as file:
            found = json.loads(file.read(_BYTES))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        log.warning("%s: cannot be read: %s: no bridge is cut off", place, error)
        return []
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


class CutOff:
    """The bridges of one hub, each with what dials for it. `directory`: None without a journal."""

    def __init__(
        self, host: Host, bridges: Sequence[registry.Bridge], journal: Journal | None
    ) -> None:
        self.directory = journal.directory.path if journal is not None else None
        self.bridges = {one.settings.name: one for one in bridges}
        cut = names_in(self.directory)
        for one in bridges:
            one.session.cut = one.settings.name in cut
            if one.session.cut:
                name = one.settings.name
                log.warning("bridge %s is %s: hubbub bridge resume %s", name, REASON, name)
        self.dialers = {
            one.settings.name: Dialer(host, one.settings, one.connect, one.session.cut)
            for one in bridges
        }

    def change(self, name: str, cut: bool) -> None:
        """Cut that one off, or resume it. SettingError: it cannot be kept, and nothing is done."""
        bridge, dialer = self.bridges[name], self.dialers[name]
        if bridge.session.cut == cut:
            return
        others = [one for one in names_in(self.directory) if one != name]
        self._keep([*others, name] if cut else others)
        bridge.session.cut = cut
        if cut:
            bridge.goodbye(REASON)
            dialer.cut_off(REASON)
        else:
            dialer.resume()
        log.warning("bridge %s is %s", name, REASON if cut else "resumed by hand")

    def _keep(self, names: Iterable[str]) -> None:
        if self.directory is None:
            return
        file = Directory(self.directory).cut_off
        try:
            write_whole(file, json.dumps(sorted(names)).encode() + b"\n")
        except OSError as error:
            raise SettingError(f"cannot write {file}: {error.strerror}") from None


def said(bridges: Sequence[registry.Bridge]) -> list[dict[str, Any]]:
    """As the status has them."""
    return [
        {"name": one.settings.name, "up": one.up, "cut_off": one.session.cut} for one in bridges
    ]
