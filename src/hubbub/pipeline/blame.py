"""Whose fault it is that Spark's query ended: chance, the machine, somebody's kill, or a row.

    chance           the same again, some times
    a row            the batch begins again, and is cut smaller: see `pipeline.trial`
    killed           the same; but the row of a batch of one is not to blame for it so soon
    all else         an error for the user, that says what to mend: no row of the journal did it

Called by `run`, with what Spark raised and what the batch raised inside it, which Spark tells only
as a text. Starts and stops nothing.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.utils import is_remote

from hubbub.errors import DirectoryError, HubbubError, JournalError
from hubbub.pipeline.batches import Batches
from hubbub.pipeline.layout import FULL, NO_ROOM
from hubbub.spark.start import died, killed

ENDED: Final = "Spark's process ended"
LATE: Final = "Python worker failed to connect back"  # ten seconds after it was started
CRASHED: Final = "Python worker exited unexpectedly"  # killed, by the kernel if by nobody else
# What Spark says when the Python that plans its stream is gone: what its socket said, or nothing.
PLANNER: Final = re.compile(r"(Broken pipe|Connection reset)$|.*with exception: +SQLSTATE", re.M)

# What the system says of a file, in a Python or in Java. EPIPE and ECONNRESET are about those who
# talk with one another, of whom one was killed.
MACHINE: Final = re.compile(
    r"\w+Error: .*\[[Ee]rrno (?!32\]|104\])\d+\]"
    r"|(FileNotFoundException|FileAlreadyExistsException|NoSuchFileException|AccessDeniedException|"
    r"FileSystemException|NotDirectoryException): "
)
_NO_ROW: Final = (
    "no row of the journal did this. Mend what it names and run it again, it goes on from the last "
    "whole batch"
)

# What Spark says of the machine, and what to do: no batch is to blame for it.
_ADVICE: Final = {
    FULL: DirectoryError(NO_ROOM),
    "CONCURRENT_STREAM_LOG_UPDATE": DirectoryError(
        "another pipeline writes the same tables: stop one of the two, or give it another --to; "
        "what both wrote of the last batch is made again by the next run"
    ),
    LATE: JournalError(
        "a Python that Spark started was not ready within ten seconds: the machine has too much "
        "to do, or too little memory, for all that runs here. Run it again with fewer pipelines "
        "beside it, or later; it goes on from the last whole batch"
    ),
}


class Blame(NamedTuple):
    """What the batch at work failed with. `killed`: one of its processes was killed, and the
    kernel, which does that where memory is out, did not do it as far as it says.
    """

    reason: str
    killed: bool = False


def out_of_memory() -> int:
    """How many processes the kernel has killed so far for want of memory; 0 where nobody says so.

    Those of containers, with less memory than the machine, are among them.
    """
    try:
        said = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.M)
    except OSError:
        return 0
    return int(said[1]) if said else 0


def by_chance(error: Exception, at_work: bool) -> str:
    """What failed by no fault of a batch, and may go well the next time; "" = nothing."""
    if LATE in str(error):
        return "a Python that Spark started was not ready within ten seconds"
    if not at_work and PLANNER.match(str(error)) and not is_remote() and not died():
        return "the Python that plans batches for Spark was killed: out of memory?"
    return ""


def blamed(error: Exception, batches: Batches | None, memory: int) -> Blame:
    """What a batch failed with, if it is to begin again. Raises what is for the user.

    `memory`: what `out_of_memory` said when the query began.
    """
    if died():
        return Blame(f"{ENDED}: out of memory?", killed() and out_of_memory() == memory)
    if chance := by_chance(error, batches is not None and batches.error is not None):
        if LATE not in str(error):
            raise JournalError(f"{chance} It goes on from the last whole batch") from error
    said = said_by(error)
    inner = batches.error if batches is not None else None
    for words, advice in _ADVICE.items():
        if words in str(error):
            raise advice from error
    if inner is not None and CRASHED in str(error) and not is_remote():
        reason = "a Python that made its tables was killed: out of memory?"
        return Blame(reason, out_of_memory() == memory)
    if MACHINE.match(said):
        raise JournalError(f"{said}: {_NO_ROW}") from error
    ours = re.search(r"hubbub\.errors\.\w+: ", str(error))
    if ours or not isinstance(inner, _BY_ROWS) or is_remote():
        raise error if isinstance(error, HubbubError) else JournalError(said) from error
    if batches is None or not by_rows(inner, batches.taking, batches.work.trials.now.rule):
        raise JournalError(f"{said_by(inner)}: {_NO_ROW}") from error
    return Blame(said_by(inner))


def by_rows(error: Exception, taking: bool, rule: str) -> bool:
    """Whether a row, or the alert at work, can have done this. What Spark cannot parse or plan no
    row has said; what fails when all rows are taken is of the machine, or our own files.
    """
    if not isinstance(error, _BY_ROWS):
        return False
    return bool(rule) or taking and not isinstance(error, AnalysisException)


# What rows can do to a batch, in Spark or in the driver's part.
_BY_ROWS: Final = (
    PySparkException, pa.ArrowException, ValueError, TypeError, LookupError, ArithmeticError,
    RecursionError,
)  # fmt: skip


_RAISED: Final = r"^(?:: |Caused by: )?(?:\w+\.)*(\w+(?:Error|Exception): .+)"  # Python's, Java's


def said_by(error: Exception) -> str:
    """What went wrong in one line: our own error or Python's, if one is inside Spark's."""
    text = str(error).strip() or type(error).__name__
    for pattern in (r"hubbub\.errors\.\w+: (.+)", _RAISED):
        found = re.findall(pattern, text, re.MULTILINE)
        if found:
            return str(found[-1]).strip()
    return text.splitlines()[0]
