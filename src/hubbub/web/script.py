"""The JavaScript client as a web server gives it to pages: `hubbub.js`, no secret, for everybody.

Served by the hub's own pages, and by `Hub.asgi` and `Hub.connect` inside an application.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

PATH: Final = "/hubbub.js"
TYPES: Final = "/hubbub.d.ts"  # what its functions take and give, for editors
# Also for pages of other origins: where they may connect is asked when they do.
HEADERS: Final = {
    "content-type": "text/javascript; charset=utf-8",
    "access-control-allow-origin": "*",
    "cache-control": "no-cache",
}


@cache
def source(path: str = PATH) -> bytes:
    """The file that is served there."""
    return files("hubbub.web").joinpath(f"static{path}").read_bytes()
