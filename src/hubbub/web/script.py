"""The JavaScript client as a web server gives it to pages: `hubbub.js`, no secret, for everybody.

Served by the hub's own pages, and by `Hub.asgi` and `Hub.connect` inside an application.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

PATH: Final = "/hubbub.js"
# Also for pages of other origins: where they may connect is asked when they do.
HEADERS: Final = {
    "content-type": "text/javascript; charset=utf-8",
    "access-control-allow-origin": "*",
    "cache-control": "no-cache",
}


@cache
def source() -> bytes:
    return files("hubbub.web").joinpath("static/hubbub.js").read_bytes()
