"""A hub inside an aiohttp application: one URL for doorbells and for people.

python examples/inside_aiohttp/doorbell.py 8000

http://127.0.0.1:8000/    shows a browser who rang; POST /open opens the door
smq://127.0.0.1:8000/     is where bells connect (`bell:ding-dong`, or over a WebSocket)
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

from aiohttp import web

from hubbub import Hub, Info, Peer, is_smq

rings: list[str] = []


def authenticate(credentials: bytes, info: Info) -> tuple[int, str]:
    return (0, "") if credentials == b"bell:ding-dong" else (3, "bells only")


def ring(data: bytes, ptid: int, tid: int, subtid: int, peer: Peer) -> None:
    rings.append(f"{peer.uid}: {data.decode()}")
    hub.publish(b"somebody is coming", ptid)


hub = Hub(authenticate=authenticate)


async def front_door(request: web.Request) -> web.StreamResponse:
    if is_smq(request):
        response: web.StreamResponse = await hub.connect(request)
        return response
    return web.Response(text="\n".join(rings) or "Nobody rang.")


async def open_door(request: web.Request) -> web.Response:
    hub.publish(b"open", "door")
    return web.Response(text="The door is open.")


async def life(app: web.Application) -> AsyncIterator[None]:
    async with hub:
        hub.subscribe("bell", ring)
        yield


app = web.Application()
app.add_routes([web.get("/", front_door), web.post("/open", open_door)])
app.cleanup_ctx.append(life)

if __name__ == "__main__":
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000)
