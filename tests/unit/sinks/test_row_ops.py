"""Row events and named operations as images in upstream order."""

import dataclasses

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.schemas.errors import SchemaMismatch
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.sinks.engine.row_ops import operations_of
from tests.support.plan_samples import INT_PK, TABLE_ID, Events, column, table, text

AT = table([column("id", flag=INT_PK), text("u")], handle="int")
TABLES = {TABLE_ID: AT}


def events() -> Events:
    return Events(AT).insert(1, "a").update((1, "a"), (1, "b"), same=True).delete(1, "b").insert(2, None)


def test_every_operation_is_kept_in_order() -> None:
    shuffled = events().table().take([2, 0, 3, 1])
    batch = operations_of(shuffled, TABLES)
    assert batch.commit_ts.tolist() == [1001, 1001, 1002, 1003]
    assert batch.transactions.tolist() == [0, 2, 3]
    found = {piece.op: piece for piece in batch.pieces}
    assert {op: piece.places.tolist() for op, piece in found.items()} == {Op.INSERT: [0, 3], Op.UPDATE: [1], Op.DELETE: [2]}
    insert, update, delete = (found[op] for op in (Op.INSERT, Op.UPDATE, Op.DELETE))
    assert insert.old is None and insert.new is not None and insert.new.to_pylist() == [{"id": 1, "u": b"a"}, {"id": 2, "u": None}]
    assert update.new is not None and update.new.column("u").to_pylist() == [b"b"]
    assert update.old is not None and update.old.column("u").to_pylist() == [b"a"]
    assert delete.new is None and delete.old is not None and delete.old.column("u").to_pylist() == [b"b"]


def test_a_transaction_that_two_pumps_have_counts_once() -> None:
    """A Prewrite that was sent again to another Pump, with a Commit in each; pieces of two Pumps come in any order."""
    once = events().table()
    batch = operations_of(pa.concat_tables([once.slice(2), once, once.slice(0, 2)]), TABLES)
    alone = operations_of(once, TABLES)
    assert batch.commit_ts.tolist() == alone.commit_ts.tolist() == [1001, 1001, 1002, 1003]
    assert [(p.op, p.places.tolist(), p.new, p.old) for p in batch.pieces] == [
        (p.op, p.places.tolist(), p.new, p.old) for p in alone.pieces
    ]


def test_rows_that_are_equal_are_two_operations() -> None:
    assert len(operations_of(Events(AT).insert(1, "a").insert(1, "a").insert(1, "a", same=True).table(), TABLES)) == 3


def test_of_no_events_there_are_no_operations() -> None:
    batch = operations_of(events().table().slice(0, 0), TABLES)
    assert (len(batch), batch.pieces, batch.transactions.tolist()) == (0, (), [])


def test_views_have_no_operations() -> None:
    view = dataclasses.replace(AT, info=dataclasses.replace(AT.info, is_view=True))
    assert len(operations_of(events().table(), {TABLE_ID: view})) == 0


def test_an_unknown_table_is_an_error() -> None:
    with pytest.raises(SchemaMismatch, match="table id 77: 4 row events from commit_ts 1001"):
        operations_of(events().table(), {})


def test_an_old_image_can_be_read_under_another_info() -> None:
    (piece,) = operations_of(Events(AT).delete(1, "b").delete(2, "c").table(), TABLES).pieces
    other = dataclasses.replace(AT, info=dataclasses.replace(AT.info, columns=AT.info.columns[:1]))
    assert piece.old_under(other, piece.places[1:]).column("id").to_pylist() == [2]
