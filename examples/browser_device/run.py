"""A page that drives a device: `python examples/browser_device/run.py`, then open what it prints.

    site/index.html in a browser ──SMQ over WebSocket──▶┌─────┐◀──SMQ── device.py, the lamp
                                                        │ hub │
          page.py, which serves it ────────inside──────▶└─────┘◀──MQTT── whatever listens to lamp/#

Starts a hub that keeps nothing, and the lamp, each a process of its own. Ctrl-C ends both.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final

HERE: Final = Path(__file__).parent
STOP_SECONDS: Final = 20.0


@contextlib.contextmanager
def program(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A Python program that runs meanwhile, and finds the modules of this folder."""
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    started = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        yield started
    finally:
        started.terminate()
        started.communicate(timeout=STOP_SECONDS)


def address_of(hub: subprocess.Popen[str]) -> str:
    assert hub.stdout is not None
    for line in hub.stdout:
        if found := re.search(r"listening on ([^ ]+\d)", line):
            return found[1]
    raise SystemExit("the hub did not start; its own message is above")


def main(listen: str) -> None:
    serve = ("serve", "--listen", listen, "--set", "journal.record=none", "--app", "page:app")
    with program("-m", "hubbub", *serve) as hub:
        address = address_of(hub)
        with program(str(HERE / "device.py"), f"smq://{address}") as lamp:
            print(f"Open http://{address}/ (Ctrl-C ends it)")
            print(f"Or:  hubbub sub 'lamp/#' --url mqtt://{address}", flush=True)
            lamp.wait()


def stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A page that drives a lamp.")
    parser.add_argument("--listen", metavar="ADDR:PORT", default="127.0.0.1:0")
    signal.signal(signal.SIGTERM, stop)
    with contextlib.suppress(KeyboardInterrupt):
        main(parser.parse_args().listen)
