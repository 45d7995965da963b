"""Which hub a command means when it is not told, and who we are there: no password is typed.

    --url, --host           what was typed
    HUBBUB_URL              one URL for all commands, in the scheme of any of them
    HUBBUB_PROFILE          a section of the profiles, by its name (`hubbub --profile NAME …`)
    [default]               the section of that name
    127.0.0.1               port 1883 or 8080

The profiles lie in `~/.config/hubbub/profiles.toml` (or below XDG_CONFIG_HOME), which nobody else
may read. Every port of a hub speaks everything, so a URL is turned into the scheme a command needs.
"""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from hubbub.client import split_url
from hubbub.errors import SettingError, without_user

URL: Final = "HUBBUB_URL"
PROFILE: Final = "HUBBUB_PROFILE"
DEFAULT: Final = "default"
HTTP: Final = "http"
MQTT: Final = "mqtt"

# By scheme: whether it is over TLS, and the port where none is said.
_SCHEMES: Final = {
    "mqtt": (False, 1883), "mqtts": (True, 8883), "ws": (False, 80), "wss": (True, 443),
    "smq": (False, 8080), "smqs": (True, 443), "smq+ws": (False, 8080), "smq+wss": (True, 443),
    "http": (False, 80), "https": (True, 443), "switch": (False, 80), "switchs": (True, 443),
}  # fmt: skip
# What each kind of command can be given as it is; else the first, or the second over TLS.
_SPOKEN: Final = {
    HTTP: ("http", "https", "switch", "switchs"),
    MQTT: ("mqtt", "mqtts", "ws", "wss", "smq", "smqs", "smq+ws", "smq+wss"),
}
_HERE: Final = {HTTP: "http://127.0.0.1:8080", MQTT: "mqtt://127.0.0.1:1883"}


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A section of the file: where the hub is, who we are, whom we trust."""

    url: str
    user: str = ""
    password: str = ""
    password_file: str = ""
    token: str = ""
    cafile: str = ""

    def secret(self) -> str:
        """The password. SettingError if its file cannot be read."""
        if not self.password_file:
            return self.password
        try:
            return Path(self.password_file).expanduser().read_text().rstrip("\r\n")
        except OSError as error:
            raise SettingError(f"cannot read {self.password_file}: {error.strerror}") from None


class Place(NamedTuple):
    """A hub as a command reaches it: a URL in a scheme that it speaks, with who we are."""

    url: str
    token: str = ""
    cafile: str = ""

    def trusted(self) -> Path | None:
        """Whom to trust, if it is spoken to over TLS."""
        secure = _SCHEMES[split_url(self.url).scheme][0]
        return Path(self.cafile).expanduser() if self.cafile and secure else None


def path() -> Path:
    """Where the profiles are looked for."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "hubbub" / "profiles.toml"


def place(kind: str, profile: str = "") -> Place:
    """The hub that is meant where nothing was typed, for a command of that kind.

    `profile`: that section, whatever the environment says.
    """
    url = os.environ.get(URL, "")
    name = profile or os.environ.get(PROFILE, "")
    if url and not name:
        return Place(_spoken(url, kind))
    found = _profiles()
    if name and name not in found:
        raise SettingError(
            f"{path()} has no profile {name!r}; it has {', '.join(sorted(found)) or 'none'}"
        )
    chosen = found.get(name or DEFAULT)
    if chosen is None:
        return Place(_HERE[kind])
    return Place(_spoken(_with_user(chosen), kind), chosen.token, chosen.cafile)


def _profiles() -> dict[str, Profile]:
    """Those of the file, none if there is no file. SettingError if others may read it."""
    file = path()
    try:
        others = stat.S_IMODE(file.stat().st_mode) & 0o077
        text = file.read_text()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SettingError(f"cannot read {file}: {error.strerror}") from None
    if others:
        raise SettingError(f"others may read {file}, which may have passwords: chmod 600 {file}")
    try:
        return msgspec.convert(tomllib.loads(text), dict[str, Profile])
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise SettingError(f"{file}: {error}") from None


def _with_user(profile: Profile) -> str:
    """Its URL with user and password in it, as every client takes them."""
    parts = split_url(profile.url)
    user = profile.user or unquote(parts.username or "")
    if not user:
        return profile.url
    secret = profile.secret() or unquote(parts.password or "")
    who = quote(user, safe="") + (f":{quote(secret, safe='')}" if secret else "")
    return parts._replace(netloc=f"{who}@{parts.netloc.rpartition('@')[2]}").geturl()


def _spoken(url: str, kind: str) -> str:
    """The same hub in a scheme that this kind of command speaks."""
    parts = split_url(url)
    if parts.scheme in _SPOKEN[kind]:
        return url
    known = _SCHEMES.get(parts.scheme)
    if known is None:
        raise SettingError(
            f"cannot use {without_user(url)!r} of {URL} or a profile: expected one of "
            f"{', '.join(f'{scheme}://' for scheme in _SCHEMES)}"
        )
    secure, port = known
    where = parts.netloc if parts.port else f"{parts.netloc}:{port}"
    return f"{_SPOKEN[kind][secure]}://{where}"
