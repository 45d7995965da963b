"""Any client of ours for programs without a loop: the same methods, which return when it is done.

    with connect("mqtt://127.0.0.1:1883") as client:
        client.subscribe("sensors/#", qos=1)
        client.publish("sensors/1", b"21.5", qos=1)
        for message in client.messages():
            print(message.topic, message.payload)

All clients of a program share one thread with one loop, which keeps connections up and answers
pings whatever the program does. Callbacks run in threads of their own, one after the other, so
they may call the client in turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

import hubbub.client

T = TypeVar("T")

_END: Final = object()


def connect(url: str, **options: Any) -> Blocking:
    """The client of `hubbub.client.connect`, to be entered with `with`."""
    return Blocking(hubbub.client.connect(url, **options))


class _Thread:
    """The loop in its thread, started when it is first needed; it ends with the program."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and return its result; if we are interrupted it is cancelled."""
        future = asyncio.run_coroutine_threadsafe(main, self._started())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="hubbub", daemon=True).start()
            return self._loop


_thread: Final = _Thread()


class Blocking:
    """A client, entered: its methods block, its streams are plain iterators."""

    def __init__(self, client: contextlib.AbstractAsyncContextManager[Any]) -> None:
        self._client = client

    def __enter__(self) -> Blocking:
        _thread.run(self._client.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        _thread.run(self._client.__aexit__(None, None, None))

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._client, name)
        if inspect.isasyncgenfunction(value):
            return lambda *args, **options: _each(value(*args, **options))
        if inspect.ismethod(value):
            return lambda *args, **options: self._call(value, args, options)
        return value

    def _call(self, method: Callable[..., Any], args: Any, options: dict[str, Any]) -> Any:
        args = [_in_a_thread(one) for one in args]
        options = {name: _in_a_thread(one) for name, one in options.items()}
        return _thread.run(_awaited(method, args, options))


async def _awaited(method: Callable[..., Any], args: Any, options: dict[str, Any]) -> Any:
    """Call on the loop, also what is no coroutine: nothing else may touch the client."""
    result = method(*args, **options)
    return await result if inspect.isawaitable(result) else result


def _in_a_thread(argument: Any) -> Any:
    """A callback of the program, for the loop to wait for."""
    if not inspect.isroutine(argument):
        return argument

    def call(*args: Any) -> Awaitable[Any]:
        return asyncio.to_thread(argument, *args)

    return call


def _each(items: AsyncIterator[T]) -> Iterator[T]:
    while (item := _thread.run(_next(items))) is not _END:
        yield item  # type: ignore[misc]  # only the end is no T


async def _next(items: AsyncIterator[T]) -> T | object:
    return await anext(items, _END)
