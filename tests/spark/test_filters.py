"""What a reader leaves out: the same topics match as in the broker, and segments without any go."""

from __future__ import annotations

import pickle
import queue
import time
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, Filter, In, StringContains, StringStartsWith

from hubbub.core.clock import Clock
from hubbub.core.topics import matches
from hubbub.journal import names
from hubbub.journal.compact import compact
from hubbub.journal.frames import Frames
from hubbub.journal.segments import Directory
from hubbub.journal.table import Table
from hubbub.journal.writer import Journal
from hubbub.schema import PUBLISH, Row, column_of
from hubbub.spark.filters import Choice

LEVELS = st.sampled_from(["", "a", "b", "$x", "$", "a.b", "[a]*", "ü%", "n\nm", "é\udce9"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.builds(
    lambda levels, last: "/".join([*levels, *last]),
    st.lists(LEVELS | st.just("+"), max_size=3),
    st.sampled_from([("#",), ("+",), ("a",)]),
)


def batch(topics: list[str], kinds: list[str] | None = None) -> pa.RecordBatch:
    columns = [column_of(topic).decode() for topic in topics]
    return pa.record_batch({"kind": kinds or ["publish"] * len(topics), "topic": columns})


def wanted(choice: Choice, given: pa.RecordBatch) -> list[bool]:
    mask = choice.mask(given)
    return [True] * len(given) if mask is None else mask.to_pylist()


@given(st.lists(TOPICS, min_size=1, max_size=20), st.lists(FILTERS, min_size=1, max_size=3))
def test_filters_match_as_in_the_broker(topics: list[str], filters: list[str]) -> None:
    expected = [any(matches(one, topic) for one in filters) for topic in topics]
    choice = Choice(topics=",".join(filters))
    assert wanted(choice, batch(topics)) == expected
    assert choice.among([column_of(topic) for topic in topics]) == any(expected)


def test_filters_of_the_largest_size_and_thousands_of_them() -> None:
    long = "+/" + "." * 65_500
    deep = "/" * 60_000
    many = ",".join([long, deep, *(f"+/line{number}/#" for number in range(5_000))])
    choice = pickle.loads(pickle.dumps(Choice(topics=many)))
    topics = ["x/" + "." * 65_500, deep, "x/line4999", "x/line5000", "x/line17/temp", deep[1:]]
    assert wanted(choice, batch(topics)) == [True, True, True, False, True, False]
    frame, begun = batch(topics[2:5]), time.process_time()
    for _ in range(100):
        choice.mask(frame)
    assert time.process_time() - begun < 1  # each took 0.2 s: a regular expression was made anew


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (EqualTo(("topic",), "a/b"), [True, False, False]),
        (EqualTo(("topic",), None), [False, False, False]),
        (In(("topic",), ("a/b", "c", None)), [True, False, True]),
        (StringStartsWith(("topic",), "a/"), [True, True, False]),
        (StringContains(("topic",), "x"), [False, True, False]),
    ],
)
def test_conditions_that_spark_pushes(condition: Filter, expected: list[bool]) -> None:
    choice = Choice()
    choice.push(condition)
    assert wanted(choice, batch(["a/b", "a/x", "c"])) == expected
    assert choice.among([b"a/b", b"a/x", b"c"]) == any(expected)


def test_kinds_and_topics_hold_together() -> None:
    choice = Choice("send,ack", "a/#")
    given = batch(["a", "a/b", "b", "a"], ["send", "publish", "send", "ack"])
    assert wanted(choice, given) == [True, False, False, True]
    assert choice.among([b"b", b"a"]) and not choice.among([b"b"])
    assert Choice("send").among([b"b"]), "kinds are not listed"


@pytest.mark.slow
def test_segments_that_have_no_wanted_topic_are_not_read(tmp_path: Path) -> None:
    durable: queue.SimpleQueue[int] = queue.SimpleQueue()
    journal = Journal(tmp_path, Clock(), "os", durable.put, 2000)
    journal.recover(lambda batch: None)
    for number in range(90):
        topic = b"rare" if number == 45 else b"t/%d" % (number // 30)
        journal.append(Row(0, 0, PUBLISH, b"mqtt", b"me", topic, payload=b"." * 100))
        while journal.pending or journal.flying:
            journal.commit()
            journal.arrived(durable.get(timeout=30))
    journal.close()
    compact(Directory(tmp_path))
    table = Table(str(tmp_path))
    shelf, last = table.shelf, table.committed()
    assert isinstance(shelf, Frames) and len(shelf.segments()) > 4
    choice = Choice(topics="rare,+/none")
    (after, upto), *rest = shelf.spans(0, last, choice.among)
    assert after < 46 <= upto and upto - after < 30
    assert len(rest) < 2, "only the last segments have no list"
    (found,) = table.read(0, last, choice)
    assert found.column("seq").to_pylist() == [46]
    assert sum(len(one) for one in table.read(10, last, Choice(topics="t/#"))) == 79
    for file in (tmp_path / "names").iterdir():
        file.write_bytes(file.read_bytes()[:-1])  # what is damaged is passed over
    assert list(shelf.spans(0, last, choice.among)) == [(0, last)]
    assert names.read(Directory(tmp_path), 1, 2) is None
