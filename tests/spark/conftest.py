"""The fixtures of the tests beside this file."""

from __future__ import annotations

from tests.spark.fixtures import spark, writer

__all__ = ["spark", "writer"]
