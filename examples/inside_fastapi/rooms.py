"""A hub inside a FastAPI application: rooms say how warm they are, people set how warm to be.

python examples/inside_fastapi/rooms.py 8000

http://127.0.0.1:8000/docs    what people can ask
ws://127.0.0.1:8000/hub       where rooms connect, with SMQ or MQTT; a room's id is its name
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, HTTPException, WebSocket

from hubbub import Hub, Peer

hub = Hub()
temperatures: dict[str, float] = {}


def report(degrees: float, ptid: int, tid: int, subtid: int, peer: Peer) -> None:
    temperatures[peer.uid] = degrees


@asynccontextmanager
async def life(app: FastAPI) -> AsyncIterator[None]:
    async with hub:
        hub.subscribe("temperature", report, json=True)
        yield


app = FastAPI(title="Rooms", lifespan=life)


@app.websocket("/hub")
async def connect(websocket: WebSocket) -> None:
    await hub.connect(websocket)


@app.get("/rooms")
async def rooms() -> dict[str, float]:
    return temperatures


@app.put("/rooms/{room}")
async def set_room(room: str, degrees: float) -> None:
    found = [peer.tid for _, peer in hub.peers() if peer.uid == room]
    if not found:
        raise HTTPException(404, f"{room} is not connected")
    hub.publish({"degrees": degrees}, found[0])


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000)
