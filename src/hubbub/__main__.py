"""Run the command line: `hubbub`, or `python -m hubbub`."""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point of the `hubbub` script."""
    if "serve" in sys.argv[1:2]:
        from hubbub.hangup import remember

        remember()  # first of all: the rest takes a while to load
    from hubbub.runtime.collector import loading

    with loading():
        from hubbub.cli import main

    main()


if __name__ == "__main__":
    main()
