"""The daemon of `hubbub.spark`, for workers that make tables: they have no pandas.

Arrow looks for pandas when it makes its first array of a list, and loads it if it is there: half of
all the processor time that a worker takes until it begins, and 36 MB in each. No table has to do
with pandas. `hubbub pipeline run` lets Spark start this module; a session of the user's own, whose
functions may want pandas, has that of `hubbub.spark`.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

from hubbub.spark.daemon import serve

UNWANTED: Final = "pandas"


class Without(MetaPathFinder):
    """Finds that there is no pandas, whatever is installed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == UNWANTED:
            raise ModuleNotFoundError(f"workers of the pipeline have no {UNWANTED}", name=name)
        return None


if __name__ == "__main__":
    sys.meta_path.insert(0, Without())
    with contextlib.suppress(ImportError):  # a worker says it where it is asked for what lacks
        importlib.import_module("hubbub.pipeline.task")  # once, and not in each that is forked
    serve()
