"""PySpark's daemon, which forks the workers, without the stacks it prints when nothing is wrong.

A query that has rows enough, `show()` or LIMIT, closes the socket of the worker that still reads
for it; so does the JVM with a worker that had nothing to do for a minute. The worker's next write
fails, as it should, and it ends; but on its way out PySpark prints a Python stack, under a result
that is right.

`hubbub.spark.session` lets Spark start this module instead of its own daemon. Workers that plan
come from Spark's own always, so do all of a session that was made otherwise, and who plans a stream
comes from no daemon: the data source, when it is loaded there, makes them silent. A worker that is
at work then is called already, so what it prints its end with is replaced, too.

It imports what a worker of the source needs before it forks any: a third of a second of a processor
that each of them took, and memory that they share.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
import traceback
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace, TracebackType
from typing import Final

from pyspark import daemon

from hubbub.spark.start import PLANNER

GONE: Final = (BrokenPipeError, ConnectionResetError, EOFError)
ENDED: Final = 1  # then the daemon lets the worker go and forks another when one is needed


def serve() -> None:
    """Fork workers until Spark ends. What is imported by now is no garbage of theirs.

    Each looks for garbage after each task, and looked at all of it again: 25 ms of a processor for
    the pipeline's, 35 for those of `hubbub.spark`.
    """
    silence(daemon)
    gc.collect()
    gc.freeze()
    daemon.manager()


def silence(running: ModuleType) -> None:
    """Let the workers of a daemon end without a word when the JVM goes away."""
    vars(running)["worker"] = partial(_serve, running.worker)


def silence_this() -> None:
    """The same for Spark's own daemon, if this process is one of its workers; or for who plans."""
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", "")
    if name == daemon.__name__:
        silence(main)
        vars(main)["traceback"] = SimpleNamespace(**vars(traceback) | {"print_exc": _print})
    elif name == PLANNER:
        sys.excepthook = _say


def _say(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What ends this process; that the JVM is gone is said by who started that."""
    if not issubclass(kind, GONE):
        sys.__excepthook__(kind, error, trace)


def _print() -> None:
    """Instead of `traceback.print_exc` as a worker of Spark's own daemon ends."""
    if not isinstance(sys.exception(), GONE):
        traceback.print_exc()


def _serve(worker: Callable[..., int], *connection: object) -> int:
    try:
        return worker(*connection)
    except (BrokenPipeError, ConnectionResetError):
        return ENDED


if __name__ == "__main__":
    with contextlib.suppress(ImportError):  # a worker says it where it is asked for what lacks
        importlib.import_module("hubbub.spark.source")
    serve()
