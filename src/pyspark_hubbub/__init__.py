"""Lets Spark find `format("hubbub")` without an import: it looks for modules named pyspark_*."""

from __future__ import annotations

from hubbub.spark.source import HubbubDataSource as DefaultSource

__all__ = ["DefaultSource"]
