"""The hub that a command asks about itself, over HTTP: where it is, who asks, whom we trust.

    @takes(Asked)
    def ls(hub: Asked, …): hub.fetch("ls/queues")     GET /api/v1/ls/queues
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from typing import Annotated, Any, Final, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import unquote
from urllib.request import Request, urlopen

import typer

from hubbub.cli import profile
from hubbub.cli.options import Cafile, Cert, Insecure, Key, tls_over
from hubbub.cli.reach import no_hub
from hubbub.client import split_url
from hubbub.errors import HubbubError, SettingError, without_user

AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as it came.")]

WHO: Final = (
    "; who you are is said in HUBBUB_URL=http://USER:PASSWORD@HOST:PORT or a profile, a token in "
    "HUBBUB_TOKEN"
)
_MAY_NOT: Final = re.compile(r"may not (trace|manage) '([^']+)': no rule")
_MANAGED: Final = re.compile(r"may not manage '([^']+)': refused by defaultACLAccess")
_RIGHT: Final = {"trace": "read", "manage": "manage"}
_NO_PAGES: Final = "there are no web pages here"  # as every listener without them says
PAGES: Final = (
    ": this listener speaks less than all, as those of a mosquitto.conf do; start the hub with "
    "--listen 127.0.0.1:8080 beside it, or ask another of its ports"
)
_SECONDS: Final = 10.0  # a hub that does not answer in this time is not well


class Asked(NamedTuple):
    """The options as they were given."""

    url: Annotated[
        str,
        typer.Option(
            help="http(s)://HOST:PORT of the hub; else HUBBUB_URL, a profile, 127.0.0.1:8080."
        ),
    ] = ""
    token: Annotated[
        str, typer.Option(envvar="HUBBUB_TOKEN", help="The hub's api.token, if it has one.")
    ] = ""
    cafile: Cafile = None
    cert: Cert = None
    key: Key = None
    insecure: Insecure = False

    def placed(self) -> Asked:
        """With what the surroundings say, if no URL was typed."""
        if self.url:
            return self
        where = profile.place(profile.HTTP)
        token = self.token or where.token
        return self._replace(url=where.url, token=token, cafile=self.cafile or where.trusted())

    def fetch(self, what: str, method: str = "GET") -> dict[str, Any]:
        """The answer of /api/v1/WHAT; HubbubError if there is none."""
        if not self.url.startswith(("http://", "https://")):
            raise SettingError(f"cannot ask {without_user(self.url)!r}: expected http://HOST:PORT")
        parts = split_url(self.url)
        at = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        headers = {"Accept": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        elif parts.username is not None:
            shown = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Authorization"] = "Basic " + b64encode(shown.encode()).decode()
        request = Request(f"{at.rstrip('/')}/api/v1/{what}", headers=headers, method=method)
        tls = tls_over(self, parts.scheme)
        try:
            with urlopen(request, timeout=_SECONDS, context=tls) as response:
                answer = json.load(response)
        except HTTPError as error:
            why = _reason(error.read(1000))
            more = PAGES if why == _NO_PAGES else _lacks(why)
            more += WHO if error.code in (401, 403) else ""
            raise HubbubError(f"{at} says {error.code}: {why}{more}") from None
        except (URLError, OSError, ValueError, RecursionError) as error:
            reason = getattr(error, "reason", error)
            raise no_hub(at, reason) from None
        if not isinstance(answer, dict):
            raise no_hub(at, "its answer is no status")
        return answer


def _lacks(why: str) -> str:
    """The line that would allow it: that `#` is no part of what begins with `$` is forgotten."""
    if found := _MANAGED.search(why):
        way = f"ROLE publishClientSend '$CONTROL/hubbub/{found[1]}' allow"
        return f" (`mosquitto_ctrl dynsec addRoleACL {way}` would)"
    found = _MAY_NOT.search(why)
    return f" (in an acl_file, `topic {_RIGHT[found[1]]} {found[2]}` would)" if found else ""


def silent(answer: dict[str, Any]) -> str:
    """Which processes of a hub are not in its answer, in words; "" if all are."""
    found = [str(one["process"]) for one in answer.get("processes", ()) if not one["up"]]
    return f" (process {', '.join(found)} does not answer)" if found else ""


def _reason(body: bytes) -> str:
    """The sentence of an answer {"error": …}, or whatever else it is."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()
