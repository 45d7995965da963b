"""Files with secrets that others on this machine can read or change: said at the start.

The hub and `sources` call it. It looks, and changes nothing: whose files they are is not known.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hubbub.config.settings import Settings

_READ: Final = stat.S_IROTH
_WRITE: Final = stat.S_IWOTH


def secrets(settings: Settings) -> Iterator[tuple[str, str]]:
    """The files with secrets that settings name, each once with the setting."""
    named = [("api.token_file", settings.api.token_file),
             ("dynamic_security", settings.dynamic_security),
             ("cluster.credentials", settings.cluster.credentials),
             ("cluster.key", settings.cluster.key or settings.cluster.certificate)]  # fmt: skip
    for listener in settings.listeners():
        named += [
            ("password_file", listener.password_file), ("jwt.keys", listener.jwt.keys),
            ("tls.key", listener.tls.key or listener.tls.certificate),
        ]  # fmt: skip
    for bridge in settings.bridge:
        named.append(("bridge.key", bridge.key or bridge.certificate))
    yield from dict.fromkeys(one for one in named if one[1])


def holds_secrets(settings: Settings) -> bool:
    """Whether the file that says these settings is one to be kept."""
    secrets = [settings.api.token, *(bridge.password for bridge in settings.bridge)]
    return any(secrets) or any(map(_has_login, settings.cluster.url))


def _has_login(url: str) -> bool:
    """A password, or a token where the user is."""
    return "@" in url


def of_configuration(settings: Settings, file: str | Path) -> str:
    """What is wrong with who may read it; "" if nothing is, or it says no secret."""
    return complaint("the configuration", file) if holds_secrets(settings) else ""


def complaint(what: str, file: str | Path) -> str:
    """What is wrong with who may use a file with secrets; "" if nothing is, or it is not there."""
    try:
        mode = Path(file).stat().st_mode
    except OSError:
        return ""
    verbs = [word for bit, word in ((_READ, "read"), (_WRITE, "change")) if mode & bit]
    if not verbs:
        return ""
    return f"{what}: every user of this machine may {' and '.join(verbs)} {file}: chmod o= {file}"


def complaints(settings: Settings) -> list[str]:
    """Of all of them."""
    found = (complaint(what, file) for what, file in secrets(settings))
    return [one for one in found if one]
