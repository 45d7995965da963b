"""`python -m tests.simulation SEED`: one schedule again, told step by step.

`python -m tests.simulation FIRST LAST` runs many and stops at the first that fails. `--cluster`
before the numbers: schedules of three hubs.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.simulation import test_cluster
from tests.simulation.test_simulation import MEMORY, run
from tests.simulation.world import World

if sys.argv[1] == "--cluster":
    first, last = int(sys.argv[2]), int(sys.argv[-1])
    for seed in range(first, last + 1):
        test_cluster.run(seed, verbose=first == last)
elif len(sys.argv) == 2:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        World(int(sys.argv[1]), Path(folder), verbose=True).run()
else:
    run(int(sys.argv[1]), int(sys.argv[2]) + 1)
