"""The settings of a hub, from those that a program gives and the options of `Hub`."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from typing import Any

import msgspec

from hubbub.config import sources
from hubbub.config.settings import Journal, Settings


def settings_of(
    settings: Settings | None,
    listen: Iterable[str] | None,
    data: str | PathLike[str] | None,
    max_connections: int,
    origins: tuple[str, ...],
    readtmo: int | None,
    asks: bool,
) -> Settings:
    """The settings of a hub, from those given and the options of `Hub`."""
    replace = msgspec.structs.replace
    if settings is None:
        record: Any = "all" if data is not None else "none"
        settings = Settings(listen=(), journal=Journal(record=record))
    if listen is not None:
        settings = replace(settings, listen=tuple(listen))
    if data is not None:
        settings = replace(settings, data=str(data))
    if readtmo is not None:
        settings = replace(settings, smq=replace(settings.smq, connect_seconds=readtmo / 1000))
    if asks and settings.allow_anonymous is None and not settings.password_file:
        settings = replace(settings, allow_anonymous=True)  # the function decides
    if max_connections or origins:
        places = [
            replace(
                one,
                max_connections=max_connections or one.max_connections,
                origins=origins + one.origins,
            )
            for one in settings.listeners()
        ]
        settings = replace(settings, listen=(), listener=tuple(places))
    sources.refuse_open_doors(settings)
    return settings
