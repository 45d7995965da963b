"""Any client of ours for programs without a loop: the same methods, which return when it is done.

    with mqtt("mqtt://127.0.0.1:1883") as client:
        client.subscribe("sensors/#", qos=1)
        client.publish("sensors/1", b"21.5", qos=1)
        for message in client.messages():
            print(message.topic, message.payload)

All clients of a program share one thread with one loop, which keeps connections up and answers
pings whatever the program does. Callbacks run in threads of their own, one after the other, so
they may call the client in turn. `connect` gives the client of any scheme, without types.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

import hubbub.client
from hubbub.client.mqtt import connect as _mqtt
from hubbub.client.mqtt.client import MqttClient
from hubbub.client.mqtt.message import Limits
from hubbub.client.smq import connect as _smq
from hubbub.client.smq.client import SmqClient
from hubbub.client.switch import connect as _switch
from hubbub.client.switch.client import SwitchClient
from hubbub.errors import HubbubError

P = ParamSpec("P")
T = TypeVar("T")

_END: Final = object()


def connect(url: str, **options: Any) -> Blocking:
    """The client of `hubbub.client.connect`, to be entered with `with`."""
    client = hubbub.client.connect(url, **options)
    return _KINDS[type(client)](client)


class _Thread:
    """The loop in its thread, started when it is first needed; it ends with the program. A process
    that was forked has not got the thread, and starts one of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0

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
            if self._loop is None or self._process != os.getpid():
                self._loop, self._process = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="hubbub", daemon=True).start()
            return self._loop


_thread: Final = _Thread()


class Blocking:
    """A client, entered: its methods block, its streams are plain iterators."""

    def __init__(self, client: contextlib.AbstractAsyncContextManager[Any]) -> None:
        self._client = client
        self._process = os.getpid()

    def __enter__(self) -> Self:
        self._process = os.getpid()
        _thread.run(self._client.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave in order. The connection of another process is left to that."""
        if self._process == os.getpid():
            _thread.run(self._client.__aexit__(None, None, None))

    def _must_be_ours(self) -> None:
        if self._process != os.getpid():
            raise HubbubError("this client was connected before the process forked: connect here")

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._client, name)
        if inspect.isasyncgenfunction(value):
            return wraps(value)(lambda *args, **options: self._each(value(*args, **options)))
        if inspect.ismethod(value):
            return wraps(value)(lambda *args, **options: self._call(value, args, options))
        return value

    def __dir__(self) -> list[str]:
        """What the client has, too: shells complete by it."""
        its = (name for name in dir(self._client) if not name.startswith("_"))
        return sorted({*super().__dir__(), *its})

    def _call(self, method: Callable[..., Any], args: Any, options: dict[str, Any]) -> Any:
        self._must_be_ours()
        args = [_in_a_thread(one) for one in args]
        options = {name: _in_a_thread(one) for name, one in options.items()}
        return _thread.run(_awaited(method, args, options))

    def _each(self, items: AsyncIterator[T]) -> Iterator[T]:
        self._must_be_ours()
        while (item := _thread.run(_next(items))) is not _END:
            yield item  # type: ignore[misc]  # only the end is no T


async def _awaited(method: Callable[..., Any], args: Any, options: dict[str, Any]) -> Any:
    """Call on the loop, also what is no coroutine: nothing else may touch the client."""
    result = method(*args, **options)
    return await result if inspect.isawaitable(result) else result


def _in_a_thread(argument: Any) -> Any:
    """A callback of the program, for the loop to wait for."""
    if not callable(argument):
        return argument

    def called(*args: Any) -> Any:
        try:
            return argument(*args)
        except (SystemExit, KeyboardInterrupt) as error:  # it would end the loop of all clients
            raise RuntimeError(f"{error!r} in a callback ends nothing but the callback") from error

    def call(*args: Any) -> Awaitable[Any]:
        return asyncio.to_thread(called, *args)

    return call


async def _next(items: AsyncIterator[T]) -> T | object:
    return await anext(items, _END)


def _blocks(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking, P], T]:
    """A method of a client as one that returns when it is done."""

    @wraps(method)
    def call(self: Blocking, /, *args: P.args, **options: P.kwargs) -> T:
        found: T = self._call(getattr(self._client, method.__name__), args, options)
        return found

    return call


def _streams(
    method: Callable[[Any], AsyncIterator[T]],
) -> Callable[[Blocking], Iterator[T]]:
    """A method that is an async iterator as a plain one."""

    @wraps(method)
    def each(self: Blocking) -> Iterator[T]:
        return self._each(method(self._client))

    return each


class BlockingMqtt(Blocking):
    """`hubbub.client.mqtt.MqttClient`, blocking: each method says there what it does."""

    _client: MqttClient

    publish = _blocks(MqttClient.publish)
    subscribe = _blocks(MqttClient.subscribe)
    unsubscribe = _blocks(MqttClient.unsubscribe)
    messages = _streams(MqttClient.messages)
    call = _blocks(MqttClient.call)
    serve = _blocks(MqttClient.serve)
    flush = _blocks(MqttClient.flush)
    ping = _blocks(MqttClient.ping)

    @property
    def client_id(self) -> str:
        """As it was given, or made up."""
        return self._client.client_id

    @property
    def version(self) -> str:
        """The one that is spoken."""
        return self._client.version

    @property
    def limits(self) -> Limits:
        """What the broker said of itself."""
        return self._client.limits

    @property
    def session_present(self) -> bool:
        """Whether the broker had kept the session."""
        return self._client.session_present

    @property
    def dropped(self) -> int:
        """How many messages of QoS 0 nobody took in time."""
        return self._client.dropped


class BlockingSmq(Blocking):
    """`hubbub.client.smq.SmqClient`, blocking: each method says there what it does."""

    _client: SmqClient

    publish = _blocks(SmqClient.publish)
    publish_parts = _blocks(SmqClient.publish_parts)
    subscribe = _blocks(SmqClient.subscribe)
    unsubscribe = _blocks(SmqClient.unsubscribe)
    messages = _streams(SmqClient.messages)
    observe = _blocks(SmqClient.observe)
    unobserve = _blocks(SmqClient.unobserve)
    create = _blocks(SmqClient.create)
    createsub = _blocks(SmqClient.createsub)
    call = _blocks(SmqClient.call)
    serve = _blocks(SmqClient.serve)

    @property
    def client_id(self) -> str:
        """As it was given, or made up."""
        return self._client.client_id

    @property
    def number(self) -> int:
        """Its own number, to which others publish; another one after a reconnection."""
        return self._client.number

    @property
    def dropped(self) -> int:
        """How many messages nobody took in time."""
        return self._client.dropped


class BlockingSwitch(Blocking):
    """`hubbub.client.switch.SwitchClient`, blocking: each method says there what it does."""

    _client: SwitchClient

    call = _blocks(SwitchClient.call)
    serve = _blocks(SwitchClient.serve)
    respond = _blocks(SwitchClient.respond)
    send = _blocks(SwitchClient.send)
    transfer = _blocks(SwitchClient.transfer)
    ack = _blocks(SwitchClient.ack)
    create = _blocks(SwitchClient.create)
    configure = _blocks(SwitchClient.configure)
    destroy = _blocks(SwitchClient.destroy)
    list = _blocks(SwitchClient.list)
    publish = _blocks(SwitchClient.publish)
    bind = _blocks(SwitchClient.bind)
    unbind = _blocks(SwitchClient.unbind)
    diagnostics = _blocks(SwitchClient.diagnostics)
    trace = _blocks(SwitchClient.trace)
    events = _streams(SwitchClient.events)
    shutdown = _blocks(SwitchClient.shutdown)

    @property
    def token(self) -> str:
        """Its name in the hub, and that of its reply queue."""
        return self._client.token


def _made(make: Callable[P, Any], blocking: Callable[[Any], T]) -> Callable[P, T]:
    """A constructor with the parameters of the one on asyncio."""

    @wraps(make)
    def made(*args: P.args, **options: P.kwargs) -> T:
        return blocking(make(*args, **options))

    return made


mqtt = _made(_mqtt, BlockingMqtt)
smq = _made(_smq, BlockingSmq)
switch = _made(_switch, BlockingSwitch)

# What `connect` makes of the clients that it finds by the scheme.
_KINDS: Final[dict[type, type[Blocking]]] = {
    MqttClient: BlockingMqtt, SmqClient: BlockingSmq, SwitchClient: BlockingSwitch,
}  # fmt: skip
