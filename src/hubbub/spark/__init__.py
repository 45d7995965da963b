"""Spark on a hub's journal: `format("hubbub")`, a session that finds it, its messages as a table.

    spark = hubbub.spark.session()
    hubbub.spark.messages(spark, "plant/#").groupBy("topic").count().show()

Imported by programs and notebooks, and by Spark itself when it looks for the data source.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hubbub.spark.options import DATA
from hubbub.spark.start import end, session

__all__ = ["end", "messages", "session"]

_COLUMNS: Final = (
    "seq", "time", "topic", "subtopic", "payload", "content_type", "qos", "retain", "protocol",
    "client", "kind", "reply_to", "correlation", "properties",
)  # fmt: skip


def messages(
    spark: SparkSession,
    topics: str = "#",
    source: str = DATA,
    *,
    stream: bool = False,
    **options: str,
) -> DataFrame:
    """The messages of a journal whose topic matches, one row each, as they were published.

    `topics`: MQTT filters, comma-separated; "" for all, those that begin with `$` too. `source`:
    the data directory of a hub, or the URL of one that runs. `stream`: a DataFrame for
    `writeStream`. `options`: more options of `format("hubbub")`. Beside the columns of the
    journal there is `text`, the payload as text, null where it is not UTF-8.
    """
    reader = (spark.readStream if stream else spark.read).format("hubbub")
    place = "url" if source.startswith(("http://", "https://")) else "path"
    given = {place: source, "topics": topics, "kinds": "publish,send", **options}
    rows = reader.options(**{name: value for name, value in given.items() if value}).load()
    text = F.when(F.is_valid_utf8(F.col("payload").cast("string")), F.col("payload").cast("string"))
    return rows.select(*_COLUMNS, text.alias("text"))
