"""typed: the tables that a user declares (`pipeline.typed`), made as the shipped ones are.

    as it is     a row a message                                            a `Table`
    dedupe_by    the first of rows alike, remembered beside the open rows   a `Spanning` one
    window       a row a key and window, open until the watermark passed    a `Spanning` one

What a row is never depends on how batches are cut. A message is a repetition if one alike came
within `dedupe_seconds` before it; its own time counts or is late by the row's own two times, as in
`traffic`; sums are of decimals, which have one result in any order.

Their declarations are kept beside the tables, so that `sql` and the others know the columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.accumulators import Accumulator
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from hubbub.errors import DirectoryError, SettingError
from hubbub.pipeline.cells import Fitter, Unfit
from hubbub.pipeline.decode import Undecodable
from hubbub.pipeline.layout import BATCH, Layout
from hubbub.pipeline.rules import Reading, Rules
from hubbub.pipeline.tables import ALL
from hubbub.pipeline.tables.messages import MESSAGE, named
from hubbub.pipeline.tables.table import (
    AnyTable,
    Column,
    Moment,
    Spanning,
    Table,
    arrow,
    ddl,
    names,
)
from hubbub.pipeline.typed import Typed, cells_of

_CONTEXT: Final = (
    Column("seq", "bigint", "number of the message in the journal"),
    Column("time", "timestamp", "when the hub took it in"),
    Column("event_time", "timestamp", "its own time by the rules; else time"),
    Column("topic", "string", "topic, or queue as $queue/NAME"),
)
_DAY: Final = Column("day", "date", "the day of time, in UTC")
_LATE: Final = Column("late", "boolean", "whether its event time cannot count")
# Sums of doubles depend on their order, and so on the cut of the batches; those of decimals do not.
_EXACT: Final = "decimal(38,12)"
_ADDED: Final = 1e19  # what is added is below: ten million of them fit, and so does any BIGINT
_BIGINT: Final = ("-9223372036854775808", "9223372036854775807")
START: Final = "window_start"  # WINDOW is a word of SQL
_KEPT: Final = "kept_"  # columns that only open rows have


def table_of(typed: Typed) -> Table | Spanning:
    """The table that a declaration is."""
    event = partial(_event, typed.pattern())
    if typed.window:
        grain = f"one row a window of {typed.window}: {', '.join((START, *typed.key))}"
        return Spanning(
            typed.name, grain, _windowed(typed), event, partial(_spanning, typed),
            clocked=True, of_messages=True, memory=_memory(typed),
        )  # fmt: skip
    columns = (*_CONTEXT, *_cells(typed), *([_DAY] if typed.by == "day" else []))
    by = ("day",) if typed.by == "day" else ()
    if typed.dedupe_by:
        grain = f"one row a message, the first of those alike in {', '.join(typed.dedupe_by)}: seq"
        return Spanning(
            typed.name, grain, columns, event, partial(_spanning, typed),
            of_messages=True, by=by, memory=_memory(typed),
        )  # fmt: skip
    return Table(
        typed.name, "one row a message: seq", columns, event, partial(_plain, typed), by,
        counts=True,
    )  # fmt: skip


def tables_of(rules: Rules) -> tuple[Table | Spanning, ...]:
    return tuple(map(table_of, rules.table))


def _event(pattern: str, rules: Rules) -> str:
    return f"{MESSAGE} AND {named(pattern)}"


def _cells(typed: Typed) -> tuple[Column, ...]:
    fields = typed.fields()
    return tuple(
        Column(cell.name, cell.type, fields[cell.name].meaning or fields[cell.name].place,
               fields[cell.name].unit)
        for cell in cells_of(typed)
    )  # fmt: skip


def _windowed(typed: Typed) -> tuple[Column, ...]:
    fields = typed.fields()
    return (
        Column(START, "timestamp", f"beginning of the {typed.window}, in UTC"),
        *(one for one in _cells(typed) if one.name in typed.key),
        *(
            one._replace(
                type=_made(fields[one.name].how, one.type),
                meaning=f"{fields[one.name].how} of {one.meaning}",
            )
            for one in _cells(typed)
            if one.name not in typed.key
        ),
        Column("messages", "bigint", "messages that count in it"),
        Column("late", "bigint", "those of them whose event time could not count"),
    )


def _made(how: str, type: str) -> str:
    """The type of an aggregate."""
    if how == "sum" and type != "double":
        return "bigint"
    return {"avg": "double", "count": "bigint"}.get(how, type)


def _memory(typed: Typed) -> tuple[Column, ...]:
    """What open rows have beside the columns: exact sums, and what was seen."""
    found = []
    for name, one in typed.fields().items():
        if one.how in ("avg", "sum"):
            found.append(Column(f"{_KEPT}sum_{name}", _EXACT, "sum so far"))
            found.append(Column(f"{_KEPT}count_{name}", "bigint", "values in it"))
    if typed.dedupe_by:
        types = {cell.name: cell.type for cell in cells_of(typed)}
        found.append(Column(f"{_KEPT}time", "timestamp", "when one alike came last"))
        found += [Column(f"{_KEPT}of_{name}", types[name], "of it") for name in typed.dedupe_by]
    return tuple(found)


# Rows


def _plain(
    typed: Typed, batch: DataFrame, rules: Rules, failed: Accumulator[int] | None = None
) -> DataFrame:
    found = _fresh(typed, batch, rules, failed).drop("late")
    return found.withColumn("day", F.to_date("time")) if typed.by == "day" else found


def _fresh(
    typed: Typed, batch: DataFrame, rules: Rules, failed: Accumulator[int] | None
) -> DataFrame:
    """The messages that fit, with their cells, and whether they are late."""
    chosen = batch.where(_event(typed.pattern(), rules))
    chosen = chosen.select(*names(_CONTEXT), "payload", "content_type")
    fit = partial(fitted, typed=typed, rules=rules, failed=failed)
    return chosen.mapInArrow(fit, ddl((*_CONTEXT, *_cells(typed), _LATE)))


def fitted(
    batches: Iterable[pa.RecordBatch],
    typed: Typed,
    rules: Rules,
    failed: Accumulator[int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """For each batch of messages those that fit; `failed` counts the others.

    One that is not even what its content type says is counted by `readings`.
    """
    reading, fitter = Reading(rules), Fitter(typed, rules)
    schema = arrow((*_CONTEXT, *_cells(typed), _LATE))
    for batch in batches:
        names = ("topic", "payload", "content_type", "time", "event_time")
        columns = (batch.column(name).to_pylist() for name in names)
        kept: list[int] = []
        rows: list[list[Any]] = []
        for index, (topic, payload, said, time, own) in enumerate(zip(*columns, strict=True)):
            declared = said or reading.of(topic)[0]
            try:
                late = fitter.late(time, own)
                rows.append([*fitter.row(topic, payload, declared), late])
                kept.append(index)
            except (Unfit, Undecodable) as error:
                if failed is not None and (isinstance(error, Unfit) or not declared):
                    failed += 1
        context = batch.select([one.name for one in _CONTEXT]).take(pa.array(kept, pa.int32()))
        fields = [schema.field(at) for at in range(len(_CONTEXT), len(schema))]
        cells = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(fields)]
        yield pa.record_batch([*context.columns, *cells], schema=schema)


def _spanning(typed: Typed, batch: DataFrame, carried: DataFrame, moment: Moment) -> DataFrame:
    """Rows that are closed and open ones; what is remembered has no first column."""
    fresh = _fresh(typed, batch, moment.rules, moment.failed)
    table = table_of(typed)
    assert isinstance(table, Spanning)
    first = table.columns[0].name
    remembered = None
    if typed.dedupe_by:
        seen = carried.where(F.col(first).isNull())
        marked = _marked(typed, fresh, seen, moment)
        if not typed.window:
            return _once(typed, table, marked)
        # A second pass, which counts none again of those that do not fit.
        again = _marked(typed, _fresh(typed, batch, moment.rules, None), seen, moment)
        fresh, remembered = marked.where("first"), _remembered(typed, again.where("last"))
    if typed.window:
        found = _gathered(typed, fresh, carried.where(F.col(first).isNotNull()), moment)
    else:
        found = fresh.withColumn("day", F.to_date("time")).withColumn("open", F.lit(False))
    found = _filled(table, found)
    return found if remembered is None else found.unionByName(_filled(table, remembered))


def _filled(table: Spanning, rows: DataFrame) -> DataFrame:
    """All columns of the table and its memory, null where there is nothing to say."""
    columns = (*table.columns, *table.memory)
    made = [
        F.col(one.name) if one.name in rows.columns else F.lit(None).cast(one.type).alias(one.name)
        for one in columns
    ]
    return rows.select(*made, "open")


def _marked(typed: Typed, fresh: DataFrame, seen: DataFrame, moment: Moment) -> DataFrame:
    """Which rows none alike came before, and which are to be remembered as the last of those alike.
    """
    keys = list(typed.dedupe_by)
    span = F.expr(f"INTERVAL {typed.dedupe_seconds:.6f} SECONDS")
    before = seen.select(
        F.lit(0).cast("bigint").alias("seq"), F.col(f"{_KEPT}time").alias("time"),
        *(F.col(f"{_KEPT}of_{key}").alias(key) for key in keys),
    )  # fmt: skip
    both = fresh.unionByName(before, allowMissingColumns=True)
    alike = Window.partitionBy(*keys).orderBy("seq")
    earlier, later = F.lag("time").over(alike), F.lead("seq").over(alike)
    new = F.col("earlier").isNull() | (F.col("earlier") < F.col("time") - span)
    found = both.select("*", earlier.alias("earlier"), later.isNull().alias("last"))
    return found.select(
        *both.columns, ((F.col("seq") > 0) & new).alias("first"),
        (F.col("last") & (F.col("time") >= moment.until - span)).alias("last"),
    )  # fmt: skip


def _memories(typed: Typed) -> dict[str, Expression]:
    """What is remembered of a row."""
    return {f"{_KEPT}time": F.col("time")} | {
        f"{_KEPT}of_{key}": F.col(key) for key in typed.dedupe_by
    }


def _remembered(typed: Typed, last: DataFrame) -> DataFrame:
    made = [value.alias(name) for name, value in _memories(typed).items()]
    return last.select(*made, F.lit(True).alias("open"))


def _once(typed: Typed, table: Spanning, marked: DataFrame) -> DataFrame:
    """Rows and what is remembered, in one pass: of two Spark would make all rows twice, with
    decoding, and plan and compile twice as much.
    """
    became = F.array(F.when(F.col("first"), F.lit(False)), F.when(F.col("last"), F.lit(True)))
    found = marked.withColumn("day", F.to_date("time"))
    found = found.select("*", F.explode(F.array_compact(became)).alias("open"))
    memories = _memories(typed)
    made = [
        F.when(~F.col("open"), F.col(one.name)).alias(one.name) for one in table.columns
    ] + [F.when(F.col("open"), memories[one.name]).alias(one.name) for one in table.memory]
    return found.select(*made, "open")


def _gathered(typed: Typed, fresh: DataFrame, opened: DataFrame, moment: Moment) -> DataFrame:
    """All windows known so far that are not written yet; open = not before the watermark."""
    fields, seconds = typed.fields(), typed.seconds()
    own = F.when(F.col("late"), F.col("time")).otherwise(F.col("event_time"))
    parts = [_window(own, seconds).alias(START), *map(F.col, typed.key)]
    parts += [F.lit(1).cast("bigint").alias("messages"), F.col("late").cast("bigint").alias("late")]
    sums, results = ["messages", "late"], [F.col(START), *map(F.col, typed.key)]
    least: list[Expression] = []
    for name, one in fields.items():
        if one.how in ("avg", "sum"):
            kept, count = f"{_KEPT}sum_{name}", f"{_KEPT}count_{name}"
            number = F.when(F.abs(F.col(name).cast("double")) < _ADDED, F.col(name)).cast(_EXACT)
            there = F.col(name).isNotNull().cast("bigint")
            parts += [number.alias(kept), there.alias(count)]
            sums += [kept, count]
            total = F.when(F.col(count) > 0, F.col(kept))
            results += [F.col(kept), F.col(count)]
            mean = total.cast("double") / F.col(count)
            fits = total.between(*(F.lit(bound).cast(_EXACT) for bound in _BIGINT))
            double = one.type.upper() == "DOUBLE"
            added = total.cast("double") if double else F.when(fits, total).cast("bigint")
            results.append((mean if one.how == "avg" else added).alias(name))
        elif one.how == "count":
            parts.append(F.col(name).isNotNull().cast("bigint").alias(name))
            sums.append(name)
            results.append(F.col(name))
        elif one.how:
            parts.append(F.col(name))
            least.append((F.min if one.how == "min" else F.max)(name).alias(name))
            results.append(F.col(name))
    partial_rows = fresh.select(*parts)
    both = partial_rows.unionByName(opened.select(*partial_rows.columns))
    summed = both.groupBy(START, *typed.key).agg(*map(_summed, sums), *least)
    patience = F.expr(f"INTERVAL {moment.rules.patience():.6f} SECONDS")
    still = F.col(START).between(
        _window(moment.until - patience, seconds), _window(moment.until, seconds)
    )
    return summed.select(*results, "messages", "late", still.alias("open"))


def _summed(name: str) -> Expression:
    """One of the sums. A value that cannot be added, or a sum beyond, makes it null for good:
    added to what comes after, it would depend on the cut of the batches.
    """
    if not name.startswith(f"{_KEPT}sum_"):
        return F.sum(name).cast("bigint").alias(name)
    count = f"{_KEPT}count_{name.removeprefix(f'{_KEPT}sum_')}"
    beyond = F.max((F.col(count) > 0) & F.col(name).isNull())
    return F.when(~beyond, F.sum(name)).cast(_EXACT).alias(name)


def _window(time: Expression, seconds: int) -> Expression:
    return F.timestamp_seconds(F.floor(F.unix_seconds(time) / seconds) * seconds)


# Beside the tables


def every(layout: Layout) -> tuple[AnyTable, ...]:
    """All tables of a data directory: the shipped ones, and those that were declared."""
    return (*ALL, *map(table_of, saved(layout)))


def saved(layout: Layout) -> tuple[Typed, ...]:
    try:
        return decoded(layout.declared.read_bytes())
    except FileNotFoundError:
        return ()
    except msgspec.MsgspecError as error:
        raise DirectoryError(
            f"{layout.declared} is damaged ({error}): remove it if the rules declare all tables as "
            "they were, the next run writes it again"
        ) from error


def save(layout: Layout, rules: Rules) -> None:
    """Keep the declarations, for a run that begins. Raises SettingError as `declared` does, and
    for a table with open rows that a run left out.
    """
    now = declared(layout, rules)
    _need_open(layout, rules)
    if now:
        layout.declare(now.encode())


def declared(layout: Layout, rules: Rules, anew: str = "") -> str:
    """What `_typed.json` is to say, "" if there is no such table. `anew`: the one that is made
    again, which may be another than it was.

    Raises SettingError for a table whose rows would not be alike.
    """
    advice = (
        "name a new table, or make this one again with `hubbub pipeline backfill {} --rules FILE`"
    )
    now = joined(saved(layout), rules, advice, anew)
    return coded(now) if now else ""


def joined(
    before: tuple[Typed, ...], rules: Rules, advice: str, anew: str = ""
) -> tuple[Typed, ...]:
    """The declarations from before and those of now. Raises SettingError as `declared` does."""
    was = {one.name: one for one in before}
    for one in rules.table:
        old = was.get(one.name, one)
        if one.name != anew and not alike(old, one):
            raise SettingError(
                f"table {one.name!r} was declared otherwise when it was begun "
                f"({_difference(old, one)}): {advice.format(one.name)}"
            )
    return tuple((was | {one.name: one for one in rules.table}).values())


def coded(declarations: tuple[Typed, ...]) -> str:
    return msgspec.json.encode(declarations).decode()


def decoded(said: bytes) -> tuple[Typed, ...]:
    return msgspec.json.decode(said, type=tuple[Typed, ...])


def _need_open(layout: Layout, rules: Rules) -> None:
    progress = layout.progress()
    if progress is None:
        return
    for one in rules.table:
        place = layout.root / "_open" / one.name
        spans = one.window or one.dedupe_by
        if spans and place.exists() and not (place / f"{BATCH}{progress.batch}").is_dir():
            raise SettingError(
                f"table {one.name!r} was left out of a run, so what is open of it is not known: "
                f"make it again with `hubbub pipeline backfill {one.name} --rules FILE`"
            )


def alike(was: Typed, now: Typed) -> bool:
    """Whether rows of both can be in one table."""
    return _form(was) == _form(now)


def _form(typed: Typed) -> dict[str, object]:
    """What must stay while a table grows."""
    how = {name: one.how for name, one in typed.fields().items()}
    return {
        **{cell.name: (cell.type, how[cell.name]) for cell in cells_of(typed)},
        " key": typed.key, " dedupe_by": typed.dedupe_by, " window": typed.seconds(),
        " by": typed.by,
    }  # fmt: skip


def _difference(was: Typed, now: Typed) -> str:
    one, other = _form(was), _form(now)
    name = next(name for name in {**one, **other} if one.get(name) != other.get(name))
    before, after = (_said(form.get(name)) for form in (one, other))
    return f"{name.strip()} was {before}, is {after}"


def _said(form: object) -> str:
    if form is None:
        return "not there"
    parts = form if isinstance(form, tuple) else (form,)
    return " ".join(str(part) for part in parts if part) or "none"
