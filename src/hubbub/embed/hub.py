"""The hub as a program sees it: SMQ's hub API under its original names, over one `Node`.

    hub = Hub(listen="127.0.0.1:8080")
    async with hub:                                   # or `with hub:`, in a thread of its own
        hub.subscribe("greetings", lambda data, ptid, *rest: hub.publish(b"hello", ptid))

Names are those of the reference hub, and so is what they do, for clients of every protocol. What
differs is said where it does, and in docs/guide/hub-api.md. All calls are made on the hub's loop:
from another thread they are handed over. The work is the node's; nothing is routed here.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import json
import logging
import threading
from collections.abc import Callable, Iterable
from os import PathLike
from types import TracebackType
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from hubbub.cluster.engine import Engine
from hubbub.config.settings import Settings
from hubbub.core import client
from hubbub.core.ids import IN_USE
from hubbub.core.limits import HANDED_OVER
from hubbub.core.link import Link
from hubbub.core.message import SPELLED, Message, run_of
from hubbub.core.names import HUB
from hubbub.core.past import past_of
from hubbub.core.session import Subscription
from hubbub.core.topics import CLIENT, QUEUE, client_number, is_name
from hubbub.embed.callbacks import (
    SELF,
    TOO_SLOW,
    Calls,
    Flushed,
    Function,
    HandOver,
    HubSession,
    LogTo,
    check_callable,
)
from hubbub.embed.cluster import Cluster
from hubbub.embed.options import settings_of
from hubbub.embed.peer import SUBTID, Info, Peer, Peers, Sock
from hubbub.embed.program import Program
from hubbub.embed.thread import OwnThread
from hubbub.errors import HubbubError
from hubbub.runtime.node import Node
from hubbub.web.upgrade import Upgrades, is_smq

__all__ = ["Hub", "Info", "Peer", "Sock", "is_smq"]

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("hubbub.program")


def _on_the_loop(method: Callable[Concatenate[Hub, P], T]) -> Callable[Concatenate[Hub, P], T]:
    """From another thread: hand the call over and wait for what it returns."""

    def call(hub: Hub, /, *args: P.args, **options: P.kwargs) -> T:
        if threading.get_ident() != hub._thread:
            return hub._handed.ask(functools.partial(call, hub, *args, **options))
        result = method(hub, *args, **options)
        hub.node.schedule()
        return result

    return functools.update_wrapper(call, method)


class _Wish(NamedTuple):
    """One `subscribe`: its function (None = the default one), and whether it wants JSON decoded."""

    onmsg: Function | None
    json: bool


class Hub:
    """One hub; several in one process share nothing. `async with` or `with` runs it.

    `listen`: one address or several ("ADDR:PORT"), which speak every protocol; without it nobody
    connects but through `connect` and `asgi`. `data`: the directory of its journal; None keeps
    everything in memory. `settings`: all other settings, which these two and `max_connections`
    (for each address, 0 = no bound) go before. `origins`: web pages of these may use the hub,
    beside its own ("https://example.org").

    Functions of the program: those that only hear may be plain or async (`onmsg`, `onconnect`,
    `onclose`, `ondrop`). `authenticate` may be async too, the client waits meanwhile. `permittop`,
    `permitsubtop` and `onpublish` decide in the middle of the hub's work and must be plain: look
    up in `authenticate` what they need, and keep it.

    * `authenticate(credentials, info) -> 0 | code | (code, text)`: `credentials` as SMQ's client
      shows them, of other protocols `user:password` (or what there is), as bytes; `info` is an
      `Info`. Codes are those of Connack: 1 id not let in, 2 unavailable, 3 wrong credentials,
      4 and 5 certificate needed or not accepted, 6 denied; None is 6. Asked after the password
      file and certificates of a listener, if it has any.
    * `permittop(topic, issub, peer) -> bool`: may it publish to (or subscribe to) a topic. Asked
      once a connection and name, also for names that exist; a filter is asked about as it is.
    * `permitsubtop(subtopic, peer) -> bool`: may it make a sub-topic that is new.
    * `onpublish(data, ptid, tid, subtid, peer) -> bool`: false drops the message without a word.
    * `ondrop(data, ptid, tid, subtid, peer)`: nobody got this message.
    * `onconnect(tid, info, peer)`, `onclose(tid, sock, peer, err)`: a client came, went; `err` is
      "" if it left in order.
    * `onmsg(data, ptid, tid, subtid, peer)`: see the method of that name.
    * `log(text)`: gets the warnings and errors of every hub in this process.
    * `readtmo`: milliseconds until an SMQ client has sent its Connect. `queuesize`: calls from
      other threads that may wait. `keepidle`, `keepintv`: see `setkeepalive`. `rndtid`: the hub's
      own number is random instead of 1. `cluster`: its place on a `Switchboard`, where several
      hubs of one process are nodes; over NATS the settings `cluster.…` say where.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        listen: str | Iterable[str] | None = None,
        data: str | PathLike[str] | None = None,
        max_connections: int = 0,
        origins: str | Iterable[str] = (),
        authenticate: Function | None = None,
        permittop: Callable[[str, bool, Peer], bool] | None = None,
        permitsubtop: Callable[[str, Peer], bool] | None = None,
        onpublish: Callable[[bytes, int, int, int, Peer | None], bool] | None = None,
        ondrop: Function | None = None,
        onconnect: Function | None = None,
        onclose: Function | None = None,
        onmsg: Function | None = None,
        log: Callable[[str], object] | None = None,
        readtmo: int | None = None,
        queuesize: int = HANDED_OVER,
        keepidle: float | None = None,
        keepintv: float = 0.0,
        rndtid: bool = False,
        cluster: Engine | None = None,
    ) -> None:
        check_callable(onmsg, log)
        self._calls = Calls()
        self._program = Program(
            self._calls, authenticate, permittop, permitsubtop, onpublish, ondrop, onconnect,
            onclose,
        )  # fmt: skip
        self._onmsg = onmsg
        self._log = LogTo(log) if log is not None else None
        self._keep_alive = (keepidle, keepintv)
        self._random_number = rndtid
        self._origins = (origins,) if isinstance(origins, str) else tuple(origins)
        places = (listen,) if isinstance(listen, str) else listen
        self.node = Node(
            settings_of(
                settings, places, data, max_connections, self._origins, readtmo,
                authenticate is not None,
            ),
            self._program.guard,
            cluster,
        )  # fmt: skip
        self.cluster: Cluster | None = None  # the other nodes, once it runs as one of several
        self._handed = HandOver(queuesize)
        self._thread = -1
        self._wishes: dict[str, dict[str | int | None, _Wish]] = {}
        self._observing: dict[str, tuple[Function, str | int]] = {}
        self._upgrades: Upgrades | None = None
        self._flushing: list[Flushed] = []
        self._own_thread: OwnThread | None = None

    # Life

    async def start(self) -> None:
        """Run on this loop: recover the journal, open the addresses.

        SettingError and DirectoryError say what is in the way; nothing is left open then.
        """
        if self._thread != -1:
            raise HubbubError("this hub runs already")
        if self._log is not None:
            logging.getLogger("hubbub").addHandler(self._log)
        try:
            await self.node.start(self._begin)
        except BaseException:
            self._end()
            raise
        idle, interval = self._keep_alive
        if idle is not None:
            self.setkeepalive(idle, interval)

    def _begin(self) -> None:
        """The state is recovered, nobody is connected yet: take our place in the broker."""
        self._thread = threading.get_ident()
        self._handed.open(asyncio.get_running_loop())
        self._wishes, self._observing = {}, {}
        self._upgrades = None
        broker = self.node.broker
        number, calls = broker.address() if self._random_number else HUB, self._calls
        self._me = broker.itself = HubSession(broker, number, self._take, self._changed, calls)
        self._peers = Peers(broker, self._me)
        self._program.begin(broker, self._peers)
        if self.node.membership is not None:
            self.cluster = Cluster(self, self.node.membership, _payload)
        broker.age += 1

    async def stop(self) -> None:
        """Close every connection so that clients come back, commit, release the directory."""
        self._handed.close()
        self._calls.hurry()
        await self.node.stop()
        await asyncio.sleep(0)  # for onclose
        self._end()

    def _end(self) -> None:
        self._handed.close()
        self._calls.cancel()
        for waiting in list(self._flushing):
            waiting.end(self.node.broker.log.durable)
        self._thread = -1
        if self._log is not None:
            logging.getLogger("hubbub").removeHandler(self._log)

    async def __aenter__(self) -> Hub:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def __enter__(self) -> Hub:
        """Run in a thread of its own, where the program's functions are called too."""
        self._own_thread = OwnThread(self.start, self.stop)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._own_thread is not None
        self._own_thread.end()

    @property
    def addresses(self) -> list[str]:
        """Where it listens, with the real ports."""
        return [str(listener.address) for listener in self.node.listeners]

    # Part I: connections

    async def connect(self, request: Any, arg: object = None) -> Any:
        """Take over the connection of a web request: SMQ, or a WebSocket of SMQ or MQTT.

        In aiohttp: `return await hub.connect(request)`; a request of neither kind is answered
        404, of the others aiohttp hears no more. In Starlette and FastAPI:
        `await hub.connect(websocket)` in a WebSocket endpoint, which ends with the connection.
        `arg` reaches `authenticate` as `info.arg`. With aiohttp, a page that asks for a path
        ending in `/hubbub.js` gets the JavaScript client: `web.get("/hubbub.js", hub.connect)`.
        """
        return await self._doors().take(request, arg)

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        """The same as an ASGI application, to be mounted: `app.mount("/smq", hub.asgi)`.

        WebSockets only, because ASGI hands over no plain sockets; `hubbub.js` below its path is
        the JavaScript client; anything else is answered 404.
        """
        await self._doors().serve(scope, receive, send)

    def _doors(self) -> Upgrades:
        if self._thread == -1:
            raise HubbubError("the hub does not run: start it in the lifespan of the application")
        if self._upgrades is None:
            self._upgrades = Upgrades(self.node.handed_listener(self._origins))
        return self._upgrades

    # Part II: acting as a client

    @_on_the_loop
    def create(self, topic: str, tid: int | None = None) -> int:
        """The number of a topic, made if it is new and kept for ever. No permission is asked.

        `tid` asks for that number; one that is taken, or 0, is replaced by a random one.
        HubbubError if there are too many (`smq.max_topics`).
        """
        return _made(self.node.broker.topic_id(topic, self._me, tid or 0), topic)

    @_on_the_loop
    def createsub(self, subtopic: str | None, stid: int | None = None) -> int:
        """The same for a sub-topic; 0 for None, which is no sub-topic."""
        if not subtopic:
            return 0
        return _made(self.node.broker.subtopic_id(subtopic, self._me, stid or 0), subtopic)

    @_on_the_loop
    def remove(self, topic: str) -> bool:
        """Take the number of a topic away, which is nobody's then; False if it has none.

        HubbubError if a client is subscribed to the topic by its number, or observes it. Who only
        publishes by it reaches nobody until it asks for the topic again. What is retained stays.
        """
        return _removed(self.node.broker.ids.remove(topic, self._me), topic)

    @_on_the_loop
    def removesub(self, subtopic: str) -> bool:
        """The same for a sub-topic. Clients that know its number go on with it."""
        return _removed(self.node.broker.ids.remove_subtopic(subtopic, self._me), subtopic)

    def publish(
        self,
        data: Any,
        topic: str | int,
        subtopic: str | int | None = None,
        ptid: int | None = None,
        *,
        qos: int = 0,
        retain: bool = False,
        content_type: str = "",
        properties: dict[str, object] | None = None,
    ) -> bool:
        """Publish to a topic by name or number, or to a client by its number.

        `data`: bytes as they are, `str` as UTF-8, anything else as JSON. Names that are new are
        created. `ptid`: on behalf of that client (the reference documents it, but ignores it).
        QoS, retain and the rest are what other protocols know. A payload above 0xFFF0 bytes is
        not an error as in the reference: it reaches all but raw SMQ sockets, which cannot carry
        it. False if it was dropped: nobody has that number, a queue or the disk is full, or, from
        another thread, too many calls wait; it is then counted. It never waits, not for the disk
        either: what is recorded is there within a tenth of a second: `flush` waits for that.
        """
        payload, kind = _payload(data)
        if qos not in (0, 1, 2) or retain not in (False, True):
            raise ValueError(f"expected a QoS of 0, 1 or 2 and a bool, got {qos!r} and {retain!r}")
        given = (subtopic, str | int | None), (content_type, str), (properties, dict | None)
        for value, wanted in given:
            if not isinstance(value, wanted):
                raise TypeError(f"expected {wanted}, got {value!r}")
        message = Message("", payload, int(qos), bool(retain), content_type=content_type or kind)
        message.properties = properties
        send = functools.partial(self._publish, message, topic, subtopic, ptid)
        if threading.get_ident() == self._thread:
            return send()
        handed = self._handed.put(send)
        if not handed:
            self.node.broker.metrics.drop("hand-over queue full")
            log.warning("a publish from another thread was dropped: the hand-over queue is full")
        return handed

    def flush(self) -> Any:
        """Wait until all that was published so far is on the disk, if it is recorded at all.

        `await hub.flush()`; from another thread `hub.flush()`. While the disk is full it waits;
        HubbubError if the hub ends and could not write it.
        """
        if threading.get_ident() == self._thread:
            return asyncio.wrap_future(self._flush())
        return self._handed.ask(self._flush).result()

    def _flush(self) -> concurrent.futures.Future[None]:
        flushed = Flushed(self.node.broker.log.position)
        self._flushing.append(flushed)
        flushed.done.add_done_callback(lambda _: self._flushing.remove(flushed))
        Link(self.node.broker.outgoing, flushed).hold(b"")
        self.node.schedule()
        return flushed.done

    @_on_the_loop
    def pubon(self, data: Any, totid: int, fromtid: int, subtopic: str | int = 0) -> bool:
        """Publish from one connected client to another; False if either is not connected."""
        if self.node.broker.client(totid) is None:
            return False
        payload, kind = _payload(data)
        message = Message("", payload, content_type=kind)
        return self._publish(message, totid, subtopic, fromtid)

    @_on_the_loop
    def subscribe(
        self,
        topic: str | int,
        onmsg: Function | None = None,
        subtopic: str | int | None = None,
        json: bool = False,
        filter: bool = False,
        *,
        last: int = 0,
        since: str = "",
    ) -> int:
        """Have `onmsg(data, ptid, tid, subtid, peer)` called for what is published to a topic.

        Several subscriptions to one topic differ by sub-topic; one without is for all sub-topics
        that have none of their own. "self" is the hub's own number, to which clients can write.
        Without `onmsg` the default function is called. `json`: data is decoded; what is no JSON
        goes to the default function as it is. Returns the topic's number.

        Beyond the reference: `filter=True` takes MQTT's wildcards (0 is returned, a filter has
        no number), and `$queue/NAME` makes the hub a consumer of that queue: a message is
        acknowledged when the function returns, a request by publishing to its `ptid`. `last` and
        `since` begin in the past: the newest so many messages that the journal has, those since
        "90s", "30m", "1h", "7d" or an ISO time; ValueError if the hub keeps no journal, and for
        a topic that is subscribed to already.
        """
        topic = self._topic_named(topic)
        check_callable(onmsg)
        self._check_filter(topic, filter)
        past = None
        if last or since:
            past = past_of(str(last or ""), since, self.node.broker.clock.stamp())
            if topic == SELF or topic in self._wishes:
                raise ValueError(f"{topic!r} is subscribed to already, so it begins now")
        wishes = self._wishes.setdefault(topic, {})
        if not wishes and topic != SELF:
            subscription = Subscription(
                self._me, topic, 0, (SPELLED, SPELLED, SPELLED), literal=not filter
            )
            try:
                client.subscribe(self.node.broker, subscription, past)
            except client.Refused as refusal:
                del self._wishes[topic]
                raise ValueError(str(refusal)) from None
            wishes[self._subtopic_key(subtopic)] = _Wish(onmsg, json)
            client.catch_up(self.node.broker, subscription, past)
        wishes[self._subtopic_key(subtopic)] = _Wish(onmsg, json)
        if filter or topic == SELF:
            return 0 if filter else self._me.number
        return self.node.broker.topic_id(topic, self._me)

    @_on_the_loop
    def unsubscribe(self, topic: str | int) -> None:
        """Remove every function of that topic, those of its sub-topics included."""
        topic = self._topic_named(topic)
        if self._wishes.pop(topic, None) is not None and topic != SELF:
            self.node.broker.unsubscribe(self._me, topic)

    def onmsg(self, function: Function | None) -> None:
        """The default function: for subscriptions without one, and for JSON that is none."""
        check_callable(function)
        self._onmsg = function

    @_on_the_loop
    def observe(self, topic: str | int, onchange: Function) -> None:
        """Have `onchange(count, topic)` called when the number of subscribers changes.

        A topic, by name or number, answers at once, and counts the clients of every protocol
        that a publish would reach. A client, by number, answers once: 0 when it is gone.
        """
        if not callable(onchange):
            raise TypeError(f"expected a function, got {onchange!r}")
        broker = self.node.broker
        name = self._name_of(topic)
        count = 0
        if name is not None:
            self._observing[name] = (onchange, topic)
            count = broker.observers.observe(self._me, name)
        if name is None or not name.startswith(CLIENT):
            self._calls.soon(onchange, count, topic)

    @_on_the_loop
    def unobserve(self, topic: str | int) -> None:
        """End `observe`; nothing happens if there is none."""
        name = self._name_of(topic)
        if name is not None and self._observing.pop(name, None) is not None:
            self.node.broker.observers.unobserve(self._me, name)

    @_on_the_loop
    def gettid(self) -> int:
        """The hub's own number: 1, unless `rndtid` was set."""
        return self._me.number

    def queuesize(self) -> tuple[int, int]:
        """How many more calls from other threads may wait, and how many do."""
        used = self._handed.used()
        return self._handed.size - used, used

    @_on_the_loop
    def tid2topic(self, tid: int) -> str | None:
        """The name of a topic, None if no topic has that number."""
        return self.node.broker.state.topics.names.get(tid)

    @_on_the_loop
    def topic2tid(self, topic: str) -> int | None:
        """The number of a topic, None if it has none; `create` makes one."""
        return self.node.broker.state.topics.numbers.get(topic)

    @_on_the_loop
    def tid2subtopic(self, stid: int) -> str | None:
        """The name of a sub-topic, None if none has that number."""
        return self.node.broker.state.subtopics.names.get(stid)

    @_on_the_loop
    def subtopic2tid(self, subtopic: str) -> int | None:
        """The number of a sub-topic, None if it has none."""
        return self.node.broker.state.subtopics.numbers.get(subtopic)

    # Part III: management

    @_on_the_loop
    def peers(self) -> list[tuple[Sock, Peer]]:
        """Every connected client of every protocol, after the hub's own, as it is now."""
        return [(peer.sock, peer) for peer in self._peers.all()]

    @_on_the_loop
    def sock2peer(self, sock: Sock) -> Peer | None:
        """Looks at every client; `etid2peer` does not."""
        return next((peer for one, peer in self.peers() if one == sock), None)

    @_on_the_loop
    def etid2peer(self, etid: int) -> Peer | None:
        """The client that has this number, None if nobody is connected under it."""
        return self._peers.by_number(etid)

    @_on_the_loop
    def topics(self) -> list[tuple[int, str]]:
        """Number and name of every topic, as they are now."""
        return list(self.node.broker.state.topics.names.items())

    @_on_the_loop
    def subtopics(self) -> list[tuple[int, str]]:
        """Number and name of every sub-topic, as they are now."""
        return list(self.node.broker.state.subtopics.names.items())

    @_on_the_loop
    def setkeepalive(self, seconds: float, interval: float = 0.0) -> None:
        """TCP's own keep-alive, for connections accepted from now on; 230 s before the first call.

        `interval` is between the questions to a silent peer; 0 means a tenth of `seconds`, and
        at least 3 s. Connections of a web server that `connect` took over keep its own.
        """
        for listener in self.node.listeners:
            listener.keep_alive(seconds, interval)

    @_on_the_loop
    def shutdown(self, msg: str | None = None, etid: int | None = None) -> None:
        """End every connection. Well-behaved clients come back, and find the same numbers.

        With `msg` they do not: SMQ gets a Disconnect with that text, MQTT 5 an administrative
        one. With `etid` only that client is ended (the reference ends all without `msg`). The
        hub itself goes on; leave its block to end it, so that another may take over its data.
        """
        clients = self.node.broker.clients
        sessions = [one for one in clients.values() if one.opening is not None]
        if etid is not None:
            sessions = [one for one in sessions if one.number == etid]
        for session in sessions:
            if msg is not None:
                session.goodbye(msg)
            elif etid is not None and session.opening is not None:
                session.opening.carrier.close_for("ended by the program")
        if etid is None:
            for sock in list(self.node.sockets):
                if sock.link is None or not sock.link.closing:
                    sock.stop()

    # Publishing

    def _publish(
        self, message: Message, topic: str | int, subtopic: str | int | None, ptid: int | None
    ) -> bool:
        broker = self.node.broker
        sender = self._me if ptid in (None, self._me.number) else broker.clients.get(ptid or 0)
        name = self._name_of(topic, create=True)
        if sender is None or name is None:
            broker.metrics.drop("unknown topic")
            return False
        if isinstance(subtopic, int):
            found = broker.state.subtopics.names.get(subtopic, "")
            if subtopic and not found:
                message.properties = {**(message.properties or {}), SUBTID: subtopic}
            subtopic = found
        elif subtopic:
            broker.subtopic_id(subtopic, self._me)
        message.topic, message.subtopic = name, subtopic or ""
        message.protocol, message.client, message.sender = (
            sender.protocol, sender.client, sender.number,
        )  # fmt: skip
        message.answers_sender = sender.asks_by_number
        route = broker.route(self._me, name)
        retain, size = message.retain and message.payload != b"", len(message.payload)
        if broker.lacks_room(sender, route, 1, retain, message.qos, size):
            return False
        run = run_of(message, sender, route)
        if seq := self._me.answered(name):
            broker.queues.answer(self._me, seq, run)
        else:
            broker.publish(run)
        self.node.schedule()
        return True

    def _name_of(self, topic: str | int, create: bool = False) -> str | None:
        """The name of a topic or the address of a client; None if the number is nobody's."""
        broker = self.node.broker
        if isinstance(topic, str):
            if topic.startswith(QUEUE) and not is_name(topic):
                raise ValueError(f"{topic!r} is not the name of a queue")
            if create and topic.startswith(CLIENT):
                return topic if broker.reachable(client_number(topic)) else None
            if create:
                broker.topic_id(topic, self._me)
            return topic
        name = broker.state.topics.names.get(topic)
        if name is None and broker.reachable(topic):
            name = f"{CLIENT}{topic}"
        return name

    # Receiving

    def _check_filter(self, topic: str, filter: bool) -> None:
        if topic.startswith(CLIENT):
            raise ValueError("clients are reached by their numbers; the hub's own is 'self'")
        known = self._me.subscriptions.get(topic)
        if known is not None and known.literal == filter:
            raise ValueError(f"{topic!r} is subscribed to already, as a name or as a filter")

    def _topic_named(self, topic: str | int) -> str:
        """A topic that is given by its name or its number. ValueError if nothing has that."""
        if isinstance(topic, str):
            return topic
        if topic == self._me.number:
            return SELF
        name = self.node.broker.state.topics.names.get(topic)
        if name is None:
            raise ValueError(f"no topic has the number {topic!r}")
        return name

    def _subtopic_key(self, subtopic: str | int | None) -> str | int | None:
        """A name where there is one, so that it is found however it was given."""
        if isinstance(subtopic, int):
            return self.node.broker.state.subtopics.names.get(subtopic, subtopic) or None
        if subtopic:
            self.node.broker.subtopic_id(subtopic, self._me)
        return subtopic or None

    def _take(self, topic: str, message: Message, then: Callable[[], None] | None) -> None:
        """A message for a subscription of the program: call its function soon."""
        wishes = self._wishes.get(topic, {})
        properties = message.properties or {}
        wish = wishes.get(message.subtopic or properties.get(SUBTID) or None)  # type: ignore[call-overload]
        wish = wish or wishes.get(None) or _Wish(None, False)
        function, data = wish.onmsg or self._onmsg, message.payload
        if wish.json:
            try:
                data = json.loads(data)
            except (ValueError, RecursionError):  # nested too deep
                function = self._onmsg
        if function is None:
            return
        if self._calls.busy():
            self.node.broker.metrics.drop(TOO_SLOW)
            return
        peer = self._peers.by_number(message.sender or self._me.number)
        self._calls.soon(function, data, *self._peers.numbers(message, True), peer, then=then)

    def _changed(self, name: str, count: int) -> None:
        take = self._observing.pop if name.startswith(CLIENT) else self._observing.get
        found = take(name, None)
        if found is not None:  # not told meanwhile that it does not matter any more
            self._calls.soon(found[0], count, found[1])


def _payload(data: Any) -> tuple[bytes, str]:
    """Bytes, and their content type where we know it."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data), ""
    if isinstance(data, str):
        return data.encode(), ""
    return json.dumps(data, separators=(",", ":")).encode(), "application/json"


def _removed(why: str, name: str) -> bool:
    if why == IN_USE:
        raise HubbubError(f"the id of {name!r} stays: {why}")
    return not why


def _made(number: int, name: str) -> int:
    if not number:
        raise HubbubError(f"no number for {name!r}: there are too many names (smq.max_topics)")
    return number
