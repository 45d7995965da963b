"""How many instructions a message costs, protocol by protocol: the same figure on a busy machine.

`python -m benchmarks.instructions` speaks the bytes of each flow to a hub in this process, without
sockets, and lets valgrind count what the second half of the rounds added. Beside the same run of
another checkout (`--tree DIR`) it says what a change costs. docs/benchmarks.md says more.
"""

from __future__ import annotations

import argparse
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROUNDS: Final = 300
EACH: Final = 10  # messages of a round
NODE: Final = "BENCHMARK_NODE"  # in the environment: the hub is a node, and no other wants anything


def _flows() -> dict[str, Callable[[], Callable[[], None]]]:
    """Each makes its conversation and returns one round of it: `EACH` messages from end to end."""
    from hubbub.auth.acl import AclRights, Rule
    from hubbub.core.broker import Broker
    from hubbub.core.clock import Clock
    from hubbub.core.connection import Connection, Protocol
    from hubbub.core.gate import Gate, Opening
    from hubbub.core.link import Link
    from hubbub.core.log import Log
    from hubbub.protocols.mqtt import Mqtt, codec
    from hubbub.protocols.smq import Smq
    from hubbub.protocols.smq import codec as words
    from hubbub.protocols.switch import Switch
    from hubbub.wire.http import parse_head

    class Heard:
        def __init__(self) -> None:
            self.last = b""

        def write(self, data: bytes) -> None:
            self.last = data

        def writelines(self, data: list[bytes]) -> None:
            self.last = b"".join(data)

        def close(self) -> None: ...
        def abort(self) -> None: ...
        def get_write_buffer_size(self) -> int:
            return 0

    class Hub:
        def __init__(self, ruled: bool = False) -> None:
            clock = Clock()
            self.broker = Broker(clock, Log(clock), "none")
            if os.environ.get(NODE):
                from hubbub.cluster.membership import Membership
                from hubbub.cluster.switchboard import Switchboard

                Membership(self.broker, Switchboard().join("a"), "").begin()
            rules = [Rule(3, "#"), Rule(3, "$queue/#"), Rule(3, "$client/#")]
            self.gate = Gate(AclRights(rules) if ruled else self.broker.open)

        def dial(self, protocol: Protocol, head: bytes = b"") -> tuple[Connection, Heard]:
            heard = Heard()
            link = Link(self.broker.outgoing, heard)
            request = parse_head(head) if head else None
            opening = Opening(self.gate, "127.0.0.1", 1, False, False, request)
            connection = protocol.connect(link, opening)
            connection.start()
            self.tick()
            return connection, heard

        def tick(self) -> None:
            unsettled, self.broker.unsettled = self.broker.unsettled, []
            for session in unsettled:
                session.settle()
            touched, self.broker.outgoing.touched = self.broker.outgoing.touched, []
            for link in touched:
                link.flush()

    def mqtt(qos: int, names: int, receivers: int, ruled: bool = False) -> Callable[[], None]:
        hub = Hub(ruled)
        protocol = Mqtt(hub.broker)
        sender, _ = hub.dial(protocol)
        sender.feed(codec.connect(b"s", True, 0))
        others = [hub.dial(protocol) for _ in range(receivers)]
        for number, (connection, _) in enumerate(others):
            connection.feed(codec.connect(b"r%d" % number, True, 0))
            connection.feed(codec.subscribe(1, [(b"a/#", qos)]))
        packets = [codec.publish(b"a/%d" % (n % names), b"x" * 64, qos, packet_id=n + 1)
                   for n in range(EACH)]  # fmt: skip

        def answer(heard: Heard, connection: Connection) -> None:
            for start, body, end in codec.packets(heard.last):
                if heard.last[start] == 0x32:
                    packet = codec.parse_publish(0x32, heard.last[body:end])
                    connection.feed(codec.acknowledgement(codec.PUBACK, packet.packet_id))

        def one() -> None:
            if names == 1:
                sender.feed(b"".join(packets))
                hub.tick()
            for packet in packets if names > 1 else ():
                sender.feed(packet)
                hub.tick()
                for connection, heard in others if qos else ():
                    answer(heard, connection)
            for connection, heard in others if qos and names == 1 else ():
                answer(heard, connection)

        return one

    def smq() -> Callable[[], None]:
        hub = Hub()
        protocol = Smq(hub.broker)
        head = b"GET / HTTP/1.1\r\nHost: x\r\nSimpleMQ: 1\r\n\r\n"
        ends = []
        for uid in (b"sender", b"reader"):
            connection, heard = hub.dial(protocol, head)
            asked = words.message(words.CONNECT, words.VERSION, rest=b"\6" + uid + b"\0")
            connection.feed(words.framed(asked))
            hub.tick()
            ends.append((connection, heard, struct.unpack(">I", heard.last[4:8])[0]))
        (sender, _, etid), (reader, heard, _) = ends
        reader.feed(words.framed(words.message(words.SUBSCRIBE, rest=b"t")))
        hub.tick()
        tid = hub.broker.topic_id("t", hub.broker.itself)
        frame = words.framed(words.message(words.PUBLISH, tid, etid, 0, rest=b"x" * 64))
        sender.feed(frame)
        hub.tick()
        assert heard.last == frame, heard.last

        def one() -> None:
            for _ in range(EACH):
                sender.feed(frame)
                hub.tick()

        return one

    def switch(ruled: bool) -> Callable[[], None]:
        hub = Hub(ruled)
        protocol = Switch(hub.broker)
        connection, heard = hub.dial(protocol)

        def ask(method: bytes, path: bytes, body: bytes = b"") -> None:
            connection.feed(b"%b %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
                            % (method, path, len(body), body))  # fmt: skip
            hub.tick()

        ask(b"GET", b"/login/me")
        ask(b"GET", b"/persistent/q")
        count = 0

        def one() -> None:
            nonlocal count
            for _ in range(EACH):
                ask(b"POST", b"/request/q/r", b"x" * 64)
                ask(b"POST", b"/transfer",
                    b'{"from":"%d","timeout":1,"queues":["q"]}' % (count - 1))  # fmt: skip
                ask(b"GET", b"/ack/q/%d" % count)
                count += 1
            assert heard.last.startswith(b"HTTP/1.1 200"), heard.last

        return one

    return {
        "mqtt qos 0, one by one": lambda: mqtt(0, 10, 1),
        "mqtt qos 0, in a run": lambda: mqtt(0, 1, 1),
        "mqtt qos 0, to 10": lambda: mqtt(0, 10, 10),
        "mqtt qos 0, with an ACL": lambda: mqtt(0, 10, 1, True),
        "mqtt qos 1, one by one": lambda: mqtt(1, 10, 1),
        "mqtt qos 1, in a run": lambda: mqtt(1, 1, 1),
        "smq, one by one": smq,
        "switch request, transfer, ack": lambda: switch(False),
        "switch, with an ACL": lambda: switch(True),
    }


def count(tree: Path, flow: str, more: dict[str, str]) -> int:
    """Instructions of a message: what twice as many rounds cost more than once as many."""
    found = []
    for rounds in (ROUNDS, 2 * ROUNDS):
        run = subprocess.run(
            ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null",
             sys.executable, "-m", "benchmarks.instructions", "--flow", flow, str(rounds)],
            env={**os.environ, "PYTHONPATH": f"{tree / 'src'}:.", "PYTHONHASHSEED": "0", **more},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        refs = re.search(r"I\s+refs:\s+([\d,]+)", run.stderr)
        if run.returncode or refs is None:
            raise SystemExit(run.stderr)
        found.append(int(refs[1].replace(",", "")))
    return (found[1] - found[0]) // (ROUNDS * EACH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.instructions")
    parser.add_argument("--tree", type=Path, action="append", help="a checkout; two are compared")
    parser.add_argument("--cluster", action="store_true", help="beside it the hub as a node")
    parser.add_argument("--flow", nargs=2, metavar=("NAME", "ROUNDS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.flow:
        one = _flows()[given.flow[0]]()
        for _ in range(int(given.flow[1])):
            one()
        return
    runs = [(tree, {}) for tree in given.tree or [Path()]] + [(Path(), {NODE: "1"})] * given.cluster
    names = [NODE if more else str(tree)[-20:] for tree, more in runs]
    print(f"{'instructions a message':32}" + "".join(f"{name:>22}" for name in names))
    for flow in _flows():
        counts = [count(tree, flow, more) for tree, more in runs]
        said = "".join(f"{one:>22,}" for one in counts)
        change = f"{100 * (counts[-1] / counts[0] - 1):+8.1f} %" if len(counts) > 1 else ""
        print(f"{flow:32}{said}{change}", flush=True)


if __name__ == "__main__":
    main()
