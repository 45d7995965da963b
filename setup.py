"""Compiles the hot path with mypyc when HUBBUB_COMPILE=1; `pip install` alone stays pure Python.

`make compiled` calls it. What is compiled is the same source: a module must run both ways, and
`make test-compiled` holds that. All else about the package stands in pyproject.toml.
"""

from __future__ import annotations

import os
from pathlib import Path

from setuptools import setup

# What runs for every packet, and takes no part in asyncio. `__init__` stays plain: packages whose
# own module is compiled cannot be found by their path.
HOT = [
    "schema.py", "core/**/*.py", "wire/**/*.py", "protocols/**/*.py",
    "journal/frame.py", "journal/gathered.py",
]  # fmt: skip


def hot_modules() -> list[str]:
    source = Path("src/hubbub")
    found = {str(path) for pattern in HOT for path in source.glob(pattern)}
    return sorted(name for name in found if not name.endswith("__init__.py"))


def extensions() -> list[object]:
    """The modules as one extension, so that they call one another without Python between."""
    from mypyc.build import mypycify

    arguments = ["--config-file", "pyproject.toml", *hot_modules()]
    return list(mypycify(arguments, opt_level="3", debug_level="0", group_name="hubbub"))


setup(ext_modules=extensions() if os.environ.get("HUBBUB_COMPILE") == "1" else [])
