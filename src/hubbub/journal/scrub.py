"""Reading the whole journal now and then: `python -m hubbub.journal.scrub DIR --rate BYTES`.

A block that the disk cannot read any more is found while there are other copies of what it held,
and not by the start that needs it. A child process of the hub, slow on purpose; ends with 0 if all
is right and prints what is not. DIR/scrubbed is touched when it comes to an end.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from hubbub.errors import HubbubError
from hubbub.journal.content import unreadable
from hubbub.journal.examine import verify
from hubbub.journal.files import write_whole
from hubbub.journal.segments import Directory


def paced(rate: float) -> Callable[[int], None]:
    """What sleeps so long that so many bytes a second are read, on average."""
    began, done = time.monotonic(), 0

    def progress(size: int) -> None:
        nonlocal done
        done += size
        early = done / rate - (time.monotonic() - began)
        if early > 0.05:
            time.sleep(early)

    return progress


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="hubbub.journal.scrub")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rate", type=float, default=20e6)
    given = parser.parse_args(arguments)
    os.nice(19)
    directory = Directory(given.directory)
    try:
        verdict = verify(directory, paced(given.rate))
        write_whole(directory.scrubbed, b"")
    except OSError as error:
        print(unreadable(error), file=sys.stderr)
        return 1
    except HubbubError as error:
        print(error, file=sys.stderr)
        return 1
    found = [*verdict.wrong, *verdict.unread, *([verdict.refusal] if verdict.refusal else [])]
    if found:
        more = f" (and {len(found) - 1} more: `hubbub journal verify`)" if found[1:] else ""
        print(f"{found[0]}{more}", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
