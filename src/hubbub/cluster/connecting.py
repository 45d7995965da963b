"""How a node connects to NATS, for whatever purpose: servers, credentials, TLS.

Whoever speaks to NATS asks here: what is live, the copies, and who looks for a namesake.
"""

from __future__ import annotations

import ssl
from typing import Any, Final

from hubbub.config.cluster import Cluster as Settings
from hubbub.errors import SettingError

SCHEMES: Final = ("nats", "tls", "ws", "wss")  # those of nats-py
CONNECT_SECONDS: Final = 2  # for which a start waits; then it goes on trying beside
RETRY_SECONDS: Final = 0.25  # a server of several that died is left for another at once


def client_options(settings: Settings, name: str) -> dict[str, Any]:
    """How a node connects, for whatever purpose."""
    options: dict[str, Any] = {
        "servers": list(settings.url), "name": name, "max_reconnect_attempts": -1,
        "allow_reconnect": True, "connect_timeout": CONNECT_SECONDS,
        "reconnect_time_wait": RETRY_SECONDS,
    }  # fmt: skip
    if settings.credentials:
        options["user_credentials"] = settings.credentials
    context = context_of(settings)
    if context is not None:
        options["tls"] = context
    return options


def context_of(settings: Settings) -> ssl.SSLContext | None:
    """TLS as the settings say; None leaves it to the URL."""
    if not (settings.ca or settings.certificate):
        return None
    reading = f"cluster.ca {settings.ca!r}"
    try:
        context = ssl.create_default_context(cafile=settings.ca or None)
        if settings.certificate:
            reading = f"cluster.certificate {settings.certificate!r}, cluster.key {settings.key!r}"
            context.load_cert_chain(settings.certificate, settings.key or None)
    except (OSError, ssl.SSLError) as error:
        raise SettingError(f"{reading}: {error}") from None
    return context


def check_urls(settings: Settings) -> None:
    """What nats-py would look up as the name of a machine."""
    for url in settings.url:
        scheme, is_said, _ = url.partition("://")
        if is_said and scheme not in SCHEMES:
            said = ", ".join(f"{one}://" for one in SCHEMES)
            raise SettingError(f"cluster.url: {scheme}:// is none of {said}")
