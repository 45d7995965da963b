"""The fixtures of the tests beside this file."""

from __future__ import annotations

from tests.pipeline.postgres import postgres
from tests.spark.fixtures import spark, true_planners, writer

__all__ = ["postgres", "spark", "true_planners", "writer"]
