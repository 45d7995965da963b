"""PySpark's program that plans a stream, without the stack it prints when nothing is wrong.

A stream that is stopped while this Python starts waits for it no more: where it was to say that it
is there is nobody, and PySpark ends with a stack, under a stop that is right. `session()` lets
Spark start this one in its place; what is planned, and every other error, is as without.
"""

from __future__ import annotations

import runpy
import sys
from types import TracebackType
from typing import Final

from pyspark.errors import PySparkRuntimeError

from hubbub.spark.daemon import GONE
from hubbub.spark.start import PLANNER

_NOBODY: Final = "CANNOT_OPEN_SOCKET"


def say(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What ends this process; that the JVM is gone is said by who started that."""
    unheard = isinstance(error, PySparkRuntimeError) and error.getCondition() == _NOBODY
    if not (unheard or issubclass(kind, GONE)):
        sys.__excepthook__(kind, error, trace)


if __name__ == "__main__":
    sys.excepthook = say
    runpy.run_module(PLANNER, run_name="__main__", alter_sys=True)
