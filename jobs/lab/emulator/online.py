"""Online schema changes of the embedded upstream: the states of a column or an index in TiDB, and what rows contain in each of them.

    ADD COLUMN, ADD INDEX     none -> delete-only -> write-only -> write-reorg | -> public
    MODIFY COLUMN with data   the same with a new column beside the old one    | -> the new one in the old one's place, under its own id
    MODIFY without, RENAME                                                     | -> at once
    DROP COLUMN, DROP INDEX                                                    | public -> write-only -> delete-only -> delete-reorg -> none

Each arrow is a schema version of its own. The steps before the bar can be rolled back. In a multi-schema change, the steps at the bar are one schema
version together, the steps after the bar follow one by one, and the job's own version is the last (TiDB ``ddl/multi_schema_change.go``). Columns that are
not public are at the end of the list (rows.md 8). Inserts and updates contain public, write-only and write-reorg columns; deletes contain public columns.

Promises: pure: a step converts a table info to the next one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_tidb_binlog.jobs.lab.emulator import schema
from pyspark_tidb_binlog.jobs.lab.emulator.schema import DELETE_ONLY, DELETE_REORG, WRITE_ONLY, WRITE_REORG, Column, Json
from pyspark_tidb_binlog.schemas.ddl_jobs import JobType
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, ColumnFlag

Step = Callable[[Json], Json]

_COMING = (DELETE_ONLY, WRITE_ONLY, WRITE_REORG)
_LEAVING = (DELETE_ONLY, DELETE_REORG)


@dataclass(frozen=True, slots=True)
class Change:
    """One clause of an ALTER TABLE."""

    type: JobType
    text: str
    prepare: tuple[Step, ...]
    """The steps that can be rolled back."""
    switch: Step
    """The first step that cannot be rolled back."""
    finish: tuple[Step, ...] = ()
    convert: "Conversion | None" = None

    @property
    def binlog_states(self) -> Mapping[int, int]:
        """Schema states of the binlogs that a job with only this change writes, by the number of the step of each."""
        steps = len(self.prepare) + 1 + len(self.finish)
        if self.type == JobType.DROP_COLUMN:
            return {1: DELETE_ONLY, steps - 1: 0}
        return {steps - 1: 0 if self.finish else PUBLIC}


@dataclass(frozen=True, slots=True)
class Conversion:
    """The data change of a MODIFY COLUMN."""

    column: str
    temporary: str
    """The new column's name until it replaces the old one."""
    of: Callable[[Any], Any]


def add_column(column: Column, after: str | None = None) -> Change:
    """ADD COLUMN, as the last column or ``after`` another (an empty name: first)."""
    place = "" if after is None else f" AFTER {quote_name(after)}" if after else " FIRST"

    def create(info: Json) -> Json:
        fresh = schema.column_json(column, info["max_col_id"] + 1, len(info["cols"]), added=True)
        return schema.with_columns(info, [*info["cols"], {**fresh, "state": DELETE_ONLY}])

    def publish(info: Json) -> Json:
        others = [c for c in info["cols"] if _name(c) != column.name]
        public = sum(c["state"] == PUBLIC for c in others)
        at = public if after is None else next((i + 1 for i, c in enumerate(others) if _name(c) == after), 0)
        return schema.with_columns(info, [*others[:at], {**_column(info, column.name), "state": PUBLIC}, *others[at:]])

    return Change(JobType.ADD_COLUMN, f"ADD COLUMN {column.text()}{place}", (create, *_column_states(column.name, _COMING[1:])), publish)


def drop_column(name: str) -> Change:
    """DROP COLUMN; indexes with this column are dropped with it, state by state."""

    def gone(info: Json) -> Json:
        kept = [i for i in info["index_info"] or () if not _covers(i, name)]
        return schema.with_columns({**info, "index_info": kept}, [c for c in info["cols"] if _name(c) != name])

    hide, *more = _column_states(name, (WRITE_ONLY, *_LEAVING))
    return Change(JobType.DROP_COLUMN, f"DROP COLUMN {quote_name(name)}", (), hide, (*more, gone))


def modify_column(column: Column, convert: Callable[[Any], Any] | None = None, *, old_name: str | None = None) -> Change:
    """MODIFY (with ``old_name`` CHANGE) COLUMN; ``convert`` when the data changes too."""
    old = old_name or column.name
    text = f"CHANGE COLUMN {quote_name(old)} {column.text()}" if old_name else f"MODIFY COLUMN {column.text()}"
    if convert is None:
        return Change(JobType.MODIFY_COLUMN, text, (), lambda info: _replaced(info, old, _redefined(info, old, column)))
    temporary = f"_Col$_{column.name}_0"

    def create(info: Json) -> Json:
        fresh = {**_redefined(info, old, column), "id": info["max_col_id"] + 1, "name": schema.name_json(temporary)}
        fresh |= {"state": DELETE_ONLY, "change_state_info": {"relative_col_offset": _column(info, old)["offset"]}}
        return schema.with_columns(info, [*info["cols"], fresh])

    def swap(info: Json) -> Json:
        fresh = {**_column(info, temporary), "name": schema.name_json(column.name), "state": PUBLIC, "change_state_info": None}
        kept = [c for c in info["cols"] if _name(c) != temporary]
        return _replaced({**info, "cols": kept}, old, fresh)

    return Change(
        JobType.MODIFY_COLUMN,
        text,
        (create, *_column_states(temporary, _COMING[1:])),
        swap,
        convert=Conversion(old, temporary, convert),
    )


def rename_column(old: str, new: str) -> Change:
    """RENAME COLUMN."""

    def rename(info: Json) -> Json:
        return _replaced(info, old, {**_column(info, old), "name": schema.name_json(new)})

    return Change(JobType.MODIFY_COLUMN, f"RENAME COLUMN {quote_name(old)} TO {quote_name(new)}", (), rename)


def add_index(name: str, *columns: str, unique: bool = False) -> Change:
    """ADD [UNIQUE] INDEX; a column is ``c``, or ``c(3)`` for a prefix."""

    def create(info: Json) -> Json:
        by_name = {_name(c): c for c in info["cols"]}
        fresh = schema.index_json(info["max_idx_id"] + 1, name, columns, by_name, unique=unique)
        found = [*(info["index_info"] or ()), {**fresh, "state": DELETE_ONLY}]
        return {**info, "index_info": found, "max_idx_id": info["max_idx_id"] + 1}

    parts = ", ".join(schema.part_text(c) for c in columns)
    text = f"ADD {'UNIQUE ' if unique else ''}INDEX {quote_name(name)}({parts})"
    return Change(JobType.ADD_INDEX, text, (create, *_index_states(name, _COMING[1:])), _index_states(name, (PUBLIC,))[0])


def drop_index(name: str) -> Change:
    """DROP INDEX."""

    def gone(info: Json) -> Json:
        return {**info, "index_info": [i for i in info["index_info"] if i["idx_name"]["O"] != name]}

    hide, *more = _index_states(name, (WRITE_ONLY, *_LEAVING))
    return Change(JobType.DROP_INDEX, f"DROP INDEX {quote_name(name)}", (), hide, (*more, gone))


def _column_states(name: str, states: tuple[int, ...]) -> tuple[Step, ...]:
    def to(state: int) -> Step:
        def step(info: Json) -> Json:
            others = [c for c in info["cols"] if _name(c) != name]
            indexes = [{**i, "state": state} if _covers(i, name) else i for i in info["index_info"] or ()]
            return schema.with_columns({**info, "index_info": indexes}, [*others, {**_column(info, name), "state": state}])

        return step

    return tuple(map(to, states))


def _index_states(name: str, states: tuple[int, ...]) -> tuple[Step, ...]:
    def to(state: int) -> Step:
        def step(info: Json) -> Json:
            return {**info, "index_info": [{**i, "state": state} if i["idx_name"]["O"] == name else i for i in info["index_info"]]}

        return step

    return tuple(map(to, states))


def _name(column: Json) -> str:
    return str(column["name"]["O"])


def _column(info: Json, name: str) -> Json:
    found: Json = next(c for c in info["cols"] if _name(c) == name)
    return found


def _covers(index: Json, name: str) -> bool:
    return any(part["name"]["O"] == name for part in index["idx_cols"])


def _redefined(info: Json, old: str, column: Column) -> Json:
    """The column with another definition, but the same id, origin default and key flag."""
    known = _column(info, old)
    fresh = schema.column_json(column, known["id"], known["offset"])
    fresh["origin_default"] = known["origin_default"]
    fresh["type"]["Flag"] |= known["type"]["Flag"] & int(ColumnFlag.PRI_KEY)
    return fresh


def _replaced(info: Json, old: str, fresh: Json) -> Json:
    """``info`` with another column in the place of ``old``, also in the indexes."""
    indexes = []
    for index in info["index_info"] or ():
        parts = [{**p, "name": fresh["name"]} if p["name"]["O"] == old else p for p in index["idx_cols"]]
        indexes.append({**index, "idx_cols": parts})
    return schema.with_columns({**info, "index_info": indexes}, [fresh if _name(c) == old else c for c in info["cols"]])
