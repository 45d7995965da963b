"""The fixtures of the tests beside this file."""

from __future__ import annotations

from tests.spark.fixtures import spark, true_planners, writer

__all__ = ["spark", "true_planners", "writer"]
