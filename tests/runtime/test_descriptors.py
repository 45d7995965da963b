"""Files: as many as this process may have, and some of them not for connections."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hubbub.core.limits import CLIENTS
from hubbub.runtime import descriptors
from hubbub.runtime.descriptors import RESERVED


@pytest.mark.parametrize("limits", ["256:1000", "1000:1000"])
def test_all_that_may_be_had_are_taken(limits: str) -> None:
    code = "import resource; from hubbub.runtime import descriptors as d; print(d.raise_limit(), "
    code += "resource.getrlimit(resource.RLIMIT_NOFILE))"
    command = ("prlimit", f"--nofile={limits}", sys.executable, "-c", code)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "1000 (1000, 1000)\n"


def test_connections_get_what_is_left_beside_the_reserve() -> None:
    taken = len(os.listdir("/proc/self/fd"))
    assert descriptors.for_connections(10_000) == pytest.approx(10_000 - taken - RESERVED, abs=3)
    assert descriptors.for_connections(10) == 1 and descriptors.for_connections(1 << 40) == CLIENTS
