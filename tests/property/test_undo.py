"""The undo of drawn transactions, step by step in a table that minds its unique keys; and the lives of rows whose keys change."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, image_schema, kind_of
from pyspark_tidb_binlog.schemas.changes.change_rows import columns_of
from pyspark_tidb_binlog.schemas.changes.row_images import images_of, with_equal_documents
from pyspark_tidb_binlog.schemas.changes.variant_values import STORED_VARIANT, VariantColumn, laid_out, rows_as_variants, spread
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType, TableInfo
from pyspark_tidb_binlog.sinks.past.net_rows import KeyUpdate, RowChange, life, net_rows
from pyspark_tidb_binlog.sinks.past.past_changes import PastSchema
from pyspark_tidb_binlog.sinks.past.undo_plan import TableUndo
from tests.property.test_variant_cells import SLOW_DRAWS, Columns, drawn, stored
from tests.support.ddl_jobs import INT, VARCHAR, column, database, history, index, job, table
from tests.support.examples import examples

KEY = {**INT, "Flag": 4099}
Row = dict[str, Any]


@examples(100, suppress_health_check=SLOW_DRAWS)
@given(drawn())
def test_images_are_those_that_were_written(rows: tuple[Columns, int]) -> None:
    """Dates that no calendar has, too. A SET with an empty member has texts that mean two values."""
    columns, count = rows
    columns = [(c, cells) for c, cells in columns if c.tp != ColumnType.SET or "" not in c.elems]
    infos = [c for c, _ in columns]
    again = images_of(stored(columns, count), infos)
    assert again.schema == image_schema(infos)
    for (info, written), cells in zip(columns, again.columns, strict=True):
        found = columns_of(_table(info), pa.RecordBatch.from_arrays([cells], [info.name]))[0][1]
        if kind_of(info) is CellKind.JSON:
            assert with_equal_documents(info, written.values).equals(cells)
        else:
            assert found.values.equals(written.values)
            assert (found.odd is None) == (written.odd is None) and (found.odd is None or found.odd.equals(written.odd))


def _table(info: ColumnInfo) -> TableInfo:
    return replace(TableInfo.from_json(table(10, "t")), columns=(info,))


V = column(3, "v", VARCHAR)
UNIQUE = {"index_info": [index(1, "u", ("u", 1), unique=True)]}
FORMER = table(10, "t", [column(1, "id", KEY), column(2, "u"), V], **UNIQUE)
LATER = table(10, "t", [column(1, "id", KEY), column(2, "u"), {**V, "name": {"O": "w"}}], **UNIQUE)
JOBS = history(
    database(1),
    job(2, 3, FORMER),
    job(3, 5, LATER, query="alter table t rename column v to w"),
    job(4, 14, LATER, query="rename table t to s"),
)
RENAMED = 50
"""The commit_ts at which the column has another name, and the table, too."""


@st.composite
def transactions(draw: st.DrawFn) -> tuple[list[tuple[int, Row | None, Row | None]], dict[int, Row], dict[int, Row], int]:
    """Changes with their commit_ts, the rows at a moment, at the end, and that moment."""
    rows: dict[int, Row] = {}
    changes: list[tuple[int, Row | None, Row | None]] = []
    begin = draw(st.sampled_from([10, 40, 60]))
    then: dict[int, Row] | None = None
    ids, values = st.integers(1, 5), st.one_of(st.none(), st.integers(1, 4))
    for ts in range(11, 11 + 7 * draw(st.integers(1, 14)), 7):
        if ts > begin and then is None:
            then = dict(rows)
        for _ in range(draw(st.integers(1, 4))):
            key, u = draw(ids), draw(values)
            row = {"id": key, "u": u, "v": draw(st.sampled_from("abc"))}
            taken = u is not None and any(r["u"] == u and i != key for i, r in rows.items())
            if key in rows and draw(st.booleans()):
                changes.append((ts, rows.pop(key), None))
            elif not taken and rows.get(key) != row:
                changes.append((ts, rows.get(key), row))
                rows[key] = row
    return changes, rows if then is None else then, rows, begin


def ledger(changes: list[tuple[int, Row | None, Row | None]]) -> pa.Table:
    """As the lake has them."""

    def variants(side: list[Row | None], *, later: list[bool]) -> pa.StructArray:
        pieces = []
        for row, renamed in zip(side, later, strict=True):
            info = TableInfo.from_json(LATER if renamed else FORMER)
            cells = [] if row is None else list(row.values())
            images = pa.RecordBatch.from_arrays(
                [
                    pa.array([cells[n] if not isinstance(cells[n], str) else cells[n].encode()] if cells else [None], f.type)
                    for n, f in enumerate(image_schema(info.columns))
                ],
                schema=image_schema(info.columns),
            )
            made = rows_as_variants([VariantColumn(c.name, typed) for c, typed in columns_of(info, images)], 1)
            pieces.append(laid_out(spread(made, np.array([0]), np.array([row is not None])), STORED_VARIANT))
        return pa.concat_arrays(pieces)

    later = [ts > RENAMED for ts, _, _ in changes]
    keys = [((old or new) or {})["id"] for _, old, new in changes]
    ops = ["insert" if old is None else "delete" if new is None else "update" for _, old, new in changes]
    return pa.table(
        {
            "commit_ts": pa.array([ts for ts, _, _ in changes]),
            "seq": pa.array(range(len(changes)), pa.int32()),
            "schema_version": pa.array([4 if renamed else 2 for renamed in later]),
            "op": ops,
            "table_id": pa.array([10] * len(changes)),
            "row_key": pa.array([key.to_bytes(8, "big") for key in keys], pa.binary()),
            "before": variants([old for _, old, _ in changes], later=later),
            "after": variants([new for _, _, new in changes], later=later),
        }
    )


def as_rows(images: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in images.to_pylist()]


@examples(150, suppress_health_check=SLOW_DRAWS)
@given(transactions(), st.booleans())
def test_each_step_of_an_undo_leaves_unique_keys_unique(drawn_: Any, chained: bool) -> None:
    changes, then, now, begin = drawn_
    span = [change for change in changes if change[0] > begin]
    if not span:
        return
    schema = PastSchema.of(JOBS, [(1, 1), (2, 2), (RENAMED, 3), (RENAMED, 4)])
    there = {(i, r["u"], r["v"].encode()) for i, r in now.items()}
    wanted = {(i, r["u"], r["v"].encode()) for i, r in then.items()}
    touched = 0
    for net in net_rows(ledger(span), schema, 4, chained=chained):
        assert [c.name for c in net.table.info.columns] == ["id", "u", "w"]
        undo = TableUndo(net)
        was, present = as_rows(net.was), as_rows(net.now)
        deletes, updates, inserts = (undo.rows_of(op) for op in ("delete", "update", "insert"))
        for mask, remove, add in ((deletes, True, False), (updates, True, True), (inserts, False, True)):
            for row in np.flatnonzero(mask).tolist():
                if remove:
                    there.remove(present[row])
                if add:
                    there.add(was[row])
                uniques = [u for _, u, _ in there if u is not None]
                assert len({i for i, _, _ in there}) == len(there) and len(set(uniques)) == len(uniques)
        touched += len(net)
        assert not (deletes & updates).any() and ((deletes | updates | inserts).all())
        texts = [t.decode() for op in ("delete", "update", "insert") for t in undo.statements(op).to_pylist()]
        assert len(texts) == touched + int(undo.moved.sum())
    assert there == wanted
    ids = {i for i in {*then, *now} if then.get(i) != now.get(i)}
    assert chained or touched == len(ids)


@examples(200)
@given(st.data())
def test_the_life_of_a_key_are_all_rows_that_were_ever_under_it(data: st.DataObject) -> None:
    rows: dict[int, str] = {}
    of: dict[tuple[int, int], str] = {}
    changes: list[RowChange] = []
    moves: list[KeyUpdate] = []
    came = 0
    for ts in range(1, 1 + data.draw(st.integers(1, 12))):
        for _ in range(data.draw(st.integers(1, 2))):
            seq = sum(change.place[0] == ts for change in changes)
            key, to = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
            steps = [("update", key)] if key in rows else [("insert", key)]
            if key in rows:
                kind = data.draw(st.sampled_from(["update", "delete", "move"]))
                if kind == "delete":
                    steps = [("delete", key)]
                elif kind == "move" and to not in rows:
                    steps = [("delete", key), ("insert", to)]
            row = rows.get(key)
            if row is None:
                came += 1
                row = f"row {came}"
            for number, (op, one) in enumerate(steps):
                place = (ts, seq + number)
                changes.append(RowChange(place, bytes([one]), op))
                of[place] = row
                if op == "delete":
                    del rows[one]
                else:
                    rows[one] = row
            if len(steps) == 2:
                moves.append((changes[-2], changes[-1]))

    def updates_of(times: Any) -> list[KeyUpdate]:
        return [move for move in moves if move[0].place[0] in times]

    for key in range(4):
        mine = {of[change.place] for change in changes if change.key == bytes([key])}
        wanted = {place for place, row in of.items() if row in mine}
        assert life([bytes([key])], lambda keys: [c for c in changes if c.key in keys], updates_of) == wanted
