"""The Pythons that plan streams, forked from one that has imported what each of them needs.

Spark starts a new Python for each stream that a data source in Python has: half a second of a
processor for imports, which was more than all else that a short run of the pipeline took. For the
Spark that the tests of a process share (`tests.spark.fixtures`) one Python imports it once:

    Spark ── starts the script of `hubbub.spark.start` ──▶ `ask`, without packages
                                                              │ environment, stdout and stderr
    the tests ── start what has all packages ──▶ `serve` ◀────┘
                                                    └── forks who plans, as `python -m` does

Who plans ends with the one that asked, which Spark may kill as it would the other. Where a test
does something to that process itself, it wants a true one: the fixture `true_planners`.
"""

from __future__ import annotations

import os
import socket
import sys

PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"


def ask(place: str) -> int:
    """Have one plan in this process's place; its exit code. What this imports, each stream pays."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
        asked.connect(place)
        words = b"\0".join(b"%s=%s" % pair for pair in os.environb.items())
        socket.send_fds(asked, [words], [1, 2])
        return int(asked.recv(16) or 1)


def serve(place: str) -> None:
    """Fork who plans, until stdin ends."""
    import gc
    import importlib
    import select
    import signal

    for name in (PLANNER, "hubbub.spark.source"):
        importlib.import_module(name)
    del sys.modules[PLANNER]  # it runs as a program
    gc.collect()
    gc.freeze()  # as in `tests.nursery`: nobody looks again at what all have imported
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(place)
        listener.listen()
        print("ready", flush=True)
        while sys.stdin not in select.select([sys.stdin, listener], [], [])[0]:
            asked, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                plan(asked)
            asked.close()


def plan(asked: socket.socket) -> None:
    """What `python -m` does with the module, with the environment and output of who asked."""
    import runpy
    import threading

    words, output, _, _ = socket.recv_fds(asked, 1 << 20, 2)
    for number, one in enumerate(output, 1):
        os.dup2(one, number)
        os.close(one)
    os.environb.clear()
    for word in words.split(b"\0"):
        name, _, value = word.partition(b"=")
        os.environb[name] = value
    threading.Thread(target=lambda: os._exit(asked.recv(1) != b""), daemon=True).start()
    code = 0
    try:
        runpy.run_module(PLANNER, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    sys.stdout.flush()
    asked.send(b"%d" % (code & 255))
    os._exit(code & 255)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        sys.exit(ask(sys.argv[2]))
