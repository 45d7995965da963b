"""`make run`: this computer's own telemetry through a hub into tables, on the screen.

    cpu_smq ──────SMQ────▶┌─────┐          ┌───────┐           ┌────────┐
    machine_mqtt ─MQTT───▶│ hub │─journal─▶│ Spark │──Parquet─▶│ screen │
    service_switch ◀─────▶└─────┘          └───────┘           └────────┘
    caller_switch ◀─message-switch─▶

Everything but the screen is a process of its own. The screen reads nothing but the Parquet that
Spark wrote. Ctrl-C or SIGTERM stops all of them in order; with `--duration` the seconds count
from Spark's first batch, and the end waits until the tables hold all that was published.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from rich.console import Console
from rich.live import Live

from hubbub.config.settings import DEFAULT_DATA, DEFAULT_LISTEN
from hubbub.journal.lock import holder
from hubbub.pipeline.layout import Layout
from hubbub.pipeline.screen import TWO_COLUMNS, Screen, View, render
from hubbub.server import as_typed

HERE: Final = Path(__file__).parent
START_SECONDS: Final = 60.0  # a hub that takes longer has a problem
SPARK_SECONDS: Final = 300.0  # the same of Spark, on a slow and busy machine
STOP_SECONDS: Final = 20.0
# Of the pipeline: its batch (15), and the first time on a machine Spark's classes (60).
PIPELINE_SECONDS: Final = 80.0
LOOK_SECONDS: Final = 1.0
HEADINGS: Final = 6  # lines of the picture which are no rows, with two tables in a line
STACKED_HEADINGS: Final = 10  # the same with one table in a line
MOST_ROWS: Final = 40  # of one table, on the highest terminal
SAY_SECONDS: Final = 10.0  # between lines where there is no terminal to draw on

# A log has no width of its own; four tables side by side need this much.
console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)

Show = Generator[None, View, None]  # is sent each view, and shows it


def say(text: str) -> None:
    console.print(text, soft_wrap=True)


class Stopped(Exception):
    """Ctrl-C, SIGTERM, or the terminal went away."""


class Died(Exception):
    """A process ended that should not have."""


class Program:
    """A child process with its output in a file."""

    def __init__(self, name: str, logs: Path, *command: str) -> None:
        self.name = name
        self.patience = PIPELINE_SECONDS if name == "pipeline" else STOP_SECONDS
        self.log = logs / f"{name}.log"
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=self.log.open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches us alone: we stop them in order
        )

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def check(self) -> None:
        code = self.process.poll()
        if code is not None:
            last = "\n    ".join(self.output().splitlines()[-12:])
            raise Died(f"{self.name} ended with exit code {code}:\n    {last}")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            if not self._ends(SAY_SECONDS / 2):
                said = "".join(self.output().splitlines()[-1:])
                say(f"Waiting for the {self.name} to end. It says: {said}")
                if not self._ends_by_and_by():
                    self.process.kill()
                    self.process.wait()

    def _ends_by_and_by(self) -> bool:
        """Whether it does within its time; says how long that has been."""
        began = time.monotonic()
        while (waited := time.monotonic() - began) < self.patience:
            if self._ends(min(SAY_SECONDS, self.patience - waited)):
                return True
            say(f"  … {time.monotonic() - began:.0f} s")
        return False

    def _ends(self, seconds: float) -> bool:
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


class Demo:
    """The programs of the demo, in the order in which they started."""

    def __init__(self, data: Path, logs: Path) -> None:
        self.data = data
        self.screen = Screen(data, rows=MOST_ROWS)
        self.logs = logs
        self.running: list[Program] = []

    def start(self, name: str, *command: str) -> Program:
        program = Program(name, self.logs, *command)
        self.running.append(program)
        return program

    def wait(self, what: str, seconds: float, done: Callable[[], Any]) -> Any:
        """Wait for something, say so, and notice when a program dies meanwhile."""
        began = said = time.monotonic()
        with console.status(what) if console.is_terminal else contextlib.nullcontext():
            if not console.is_terminal:
                say(f"{what} …")
            while not (result := done()):
                self.check()
                now = time.monotonic()
                if now - began > seconds:
                    raise Died(f"{what}: not done after {seconds:.0f} s")
                if not console.is_terminal and now - said > SAY_SECONDS:
                    said = now
                    say(f"  … {now - began:.0f} s")
                time.sleep(0.2)
        return result

    def tables_hold(self, seq: int) -> bool:
        """Whether a whole batch reached that row of the journal."""
        progress = Layout(self.data).progress()
        return progress is not None and progress.seq >= seq

    def check(self) -> None:
        for program in self.running:
            program.check()

    def stop(self) -> None:
        """Senders first and the hub last, so that nobody loses the other end."""
        for program in reversed(self.running):
            program.stop()


def main() -> int:
    options = parse(sys.argv[1:])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stopped)
    with tempfile.TemporaryDirectory(prefix="hubbub-demo-") as logs:
        demo = Demo((options.data or directory()).resolve(), Path(logs))
        try:
            run(demo, options.duration)
        except Stopped:
            say("Stopping.")
        except Died as error:
            say(f"[bold red]Stopped:[/] {error}")
            return 1
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C leaves nothing behind
            demo.stop()
    say(f"Everything has ended, in order. What came is kept in {demo.data}.")
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Telemetry of this computer through a hub.")
    parser.add_argument("--data", type=Path, metavar="DIR")
    parser.add_argument("--duration", type=float, metavar="SECONDS")
    return parser.parse_args(arguments)


def directory() -> Path:
    """That of any hub, or one beside it where a hub runs on that, as it does after `make serve`."""
    usual, beside = Path(DEFAULT_DATA), Path(f"{DEFAULT_DATA}-run")
    if not holder(usual / "lock"):
        return usual
    say(f"In use already: {usual}; the hub keeps what comes in {beside} instead.")
    return beside


def stopped(number: int, frame: object) -> None:
    raise Stopped


def run(demo: Demo, duration: float | None) -> None:
    earlier = (demo.data / "log").exists()
    first, second = start_hub(demo)
    start = committed(second)
    if earlier:
        say(f"{start:,} rows of earlier runs are kept there, and the tables count them too;")
        say(f"to begin anew remove {demo.data} before the next run.")
    start_devices(demo, first, second)
    spark = demo.start("pipeline", "-m", "hubbub", "pipeline", "run", "--data", str(demo.data))
    demo.wait(
        "Starting Spark, which is a Java program: 10 s, on a busy machine a minute",
        SPARK_SECONDS,
        lambda: "Spark runs" in spark.output(),
    )
    demo.wait(
        "The devices publish; waiting for Spark to write the first batch of tables",
        SPARK_SECONDS,
        lambda: demo.tables_hold(start + 1),
    )
    watch(demo, duration)
    finish(demo, second)


def start_hub(demo: Demo) -> tuple[str, str]:
    """Start the hub, and return its two addresses, for devices and for HTTP."""
    taken = [address for address in DEFAULT_LISTEN if not free(address)]
    if taken:
        say(f"In use already: {', '.join(taken)}; the hub takes another port instead.")
    listen = ["127.0.0.1:0" if address in taken else address for address in DEFAULT_LISTEN]
    options = [part for address in listen for part in ("--listen", address)]
    hub = demo.start("hub", "-m", "hubbub", "serve", "--data", str(demo.data), *options)
    first, second = demo.wait("Starting the hub", START_SECONDS, lambda: addresses(hub.output()))
    say("The hub speaks SMQ, MQTT and message-switch")
    say(f"on {first} and {second};")
    say(f"its journal and the tables are in {demo.data}.")
    say(f"Its page is http://{second}/. Publish something by hand, it becomes a row too:")
    say(f"    {as_typed()} pub hello -m world --url mqtt://{first}")
    if shutil.which("mosquitto_pub"):
        say(f"    mosquitto_pub -p {first.rpartition(':')[2]} -t hello -m world")
    say("and to find it, now or when this has ended:")
    where = "" if demo.data == Path(DEFAULT_DATA).resolve() else f" --data {demo.data}"
    query = "\"SELECT * FROM messages WHERE topic = 'hello'\""
    say(f"    {as_typed()} pipeline sql {query}{where}")
    return first, second


def free(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            return False
    return True


def addresses(banner: str) -> list[str]:
    """The addresses that the hub says it listens on, once it has said all of them."""
    found = [line.split()[2].rstrip(":") for line in banner.splitlines() if "listening on" in line]
    return found if len(found) == len(DEFAULT_LISTEN) else []


def committed(address: str) -> int:
    """The last row of the journal that is safe on the disk."""
    with urlopen(f"http://{address}/api/v1/status", timeout=STOP_SECONDS) as answer:
        return int(json.load(answer)["journal"]["committed"])


def start_devices(demo: Demo, first: str, second: str) -> None:
    for name, url in (
        ("cpu_smq", f"smq://{first}"),
        ("machine_mqtt", f"mqtt://{first}"),
        ("service_switch", f"switch://{second}"),
        ("caller_switch", f"switch://{second}"),
    ):
        demo.start(name, str(HERE / f"{name}.py"), url)


def watch(demo: Demo, duration: float | None) -> None:
    """Show the tables until the time is over."""
    until = time.monotonic() + duration if duration is not None else float("inf")
    show = drawn() if console.is_terminal else said()
    next(show)
    with contextlib.closing(show):
        while time.monotonic() < until:
            if (view := demo.screen.look()) is not None:
                show.send(view)
            demo.check()
            time.sleep(LOOK_SECONDS)


def drawn() -> Show:
    """One picture that changes in place, as high as the terminal is."""
    with Live(console=console, auto_refresh=False) as live:
        while True:
            view = yield
            live.update(render(view, rows_that_fit(console.width, console.height)), refresh=True)


def rows_that_fit(width: int, height: int) -> int:
    """Rows of each of the four tables: two stand beside each other, or all below one another."""
    if width >= TWO_COLUMNS:
        return max((height - HEADINGS) // 2, 3)
    return max((height - STACKED_HEADINGS) // 4, 2)


def said() -> Show:
    """A line now and then, where there is no terminal to draw on."""
    say("A row of traffic is open until its minute is over, a row of calls until its answer.")
    last, before = 0.0, -1
    while True:
        view = yield
        new = view.progress.batch != before
        if new and time.monotonic() - last >= SAY_SECONDS:
            last, before = time.monotonic(), view.progress.batch
            say(line(view))


def line(view: View) -> str:
    parts = []
    for name in ("messages", "readings", "traffic", "calls"):
        opened = view.counts.get(f"{name}_open", 0)
        parts.append(f"{name} {view.counts[name]:,}" + (f" (+{opened:,} open)" if opened else ""))
    if view.latency_ms is not None:
        parts.append(f"mean latency {view.latency_ms:.1f} ms")
    return f"Tables up to journal row {view.progress.seq}: {', '.join(parts)}"


def finish(demo: Demo, address: str) -> None:
    """Stop the devices, let the pipeline catch up, and show what came of it."""
    hub, *devices, pipeline = demo.running
    for device in reversed(devices):
        device.stop()
    demo.running = [hub, pipeline]
    last = committed(address)
    demo.wait(
        f"Waiting until the tables hold everything up to row {last}",
        SPARK_SECONDS,
        lambda: demo.tables_hold(last),
    )
    if (view := demo.screen.look()) is not None:
        console.print(render(view))
        say(line(view))


if __name__ == "__main__":
    sys.exit(main())
