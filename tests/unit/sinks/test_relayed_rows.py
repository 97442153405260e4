"""Rows read back from a relay log are those that were written: every value of the golden cases, and the worked example of wire.md 2.4."""

import datetime
from collections.abc import Sequence
from dataclasses import replace
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.proto import secondary_binlog_pb2 as slave
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, TableInfo
from pyspark_tidb_binlog.sinks.engine.batch import rows_between
from pyspark_tidb_binlog.sinks.engine.choice import chosen
from pyspark_tidb_binlog.sinks.engine.row_ops import RowOp, operations_named, operations_of
from pyspark_tidb_binlog.sinks.engine.segments import RowsStep
from pyspark_tidb_binlog.sinks.mysql.structure import TargetColumn, TargetKey, TargetTable
from pyspark_tidb_binlog.sinks.relay.relayed_rows import binlog_of, operations_in, table_of
from pyspark_tidb_binlog.sinks.translate.column_values import ReadBack
from pyspark_tidb_binlog.sinks.translate.secondary_binlogs import SecondaryBinlogs
from pyspark_tidb_binlog.sinks.translate.translation import Translation
from tests.support.golden_messages import SYSTEM, case_steps

UPDATE = (
    "080010818080e0f68cfbc3061a5e0a5c0a06737065635f611201611a120a0269641206626967696e741801201428001a120a01731207766172636861721800201428002218"
    "0801120a0a0210070a04320268691a080a0210070a0208012a0d0a075052494d41525912026964"
)


def there(*columns: TargetColumn, keys: Sequence[TargetKey] = ()) -> TargetTable:
    return TargetTable("d", "t", columns, tuple(keys))


def column_there(name: str, *, nullable: bool = True, unsigned: bool = False, collation: str = "") -> TargetColumn:
    return TargetColumn(name, "bigint unsigned" if unsigned else "bigint", nullable, None, False, False, collation)


def made_of(info: TableInfo) -> TargetTable:
    columns = (column_there(c.name, nullable=not c.not_null, unsigned=c.unsigned, collation=c.collate) for c in info.target_columns())
    handle = [TargetKey("PRIMARY", tuple((c.name, -1) for c in info.handle_columns()))] if info.pk_is_handle else []
    keys = [
        TargetKey(i.name, tuple((c.name, c.length) for c in i.columns))
        for i in sorted(info.indexes, key=lambda i: not i.primary)
        if (i.unique or i.primary) and i.state == PUBLIC
    ]
    return there(*columns, keys=(*handle, *keys))


@pytest.mark.parametrize("zone", [datetime.UTC, ZoneInfo("Asia/Shanghai")])
@pytest.mark.parametrize("case", ["types", "keys", "txn", "beyond_mysql", "ddl"])
def test_every_value_comes_back(case: str, zone: datetime.tzinfo) -> None:
    _, rows, steps = case_steps(case)
    how, compared = ReadBack(zone), 0
    for step in (chosen(s, SYSTEM) for s in steps if isinstance(s, RowsStep)):
        here = rows_between(rows, step.after_ts, step.upto_ts)
        for message in Translation.of(step, SecondaryBinlogs(zone)).messages(here):
            binlog = binlog_of(message.payload, "here")
            own = here.filter(pc.equal(here.column("commit_ts"), message.commit_ts))
            own = own.filter(pa.array([i in step.tables for i in own.column("table_id").to_pylist()]))
            wanted = {(p.table.schema, p.table.name, p.op): p for p in operations_of(own, step.tables).pieces}
            ops: list[RowOp] = []
            tables = {}
            for table in binlog.dml_data.tables:
                (info,) = {p.table.table_id: p.table.info for p in wanted.values() if p.table.name == table.table_name}.values()
                tables[table.schema_name, table.table_name] = at = table_of(table, made_of(info))
                assert [[c.name for c in key] for key in at.info.unique_keys()] == [[c.name for c in key] for key in info.unique_keys()]
                ops += operations_in(table, at, message.commit_ts, how)
            for piece in operations_named(ops, tables).pieces:
                theirs = wanted.pop((piece.table.schema, piece.table.name, piece.op))
                for mine, other in ((piece.old, theirs.old), (piece.new, theirs.new)):
                    assert (mine is None) == (other is None)
                    if mine is not None and other is not None:
                        compared += mine.num_rows
                        assert mine.to_pylist() == other.to_pylist()
            assert not wanted
    assert compared > 20 and not how.doubtful_times


def test_the_worked_example() -> None:
    """UPDATE of (id 7, s NULL -> 'hi')."""
    binlog = binlog_of(bytes.fromhex(UPDATE), "here")
    (table,) = binlog.dml_data.tables
    at = table_of(
        table,
        there(
            column_there("ID", nullable=False),
            column_there("s", collation="utf8mb4_bin"),
            column_there("more"),
            replace(column_there("s2"), generated=True),
            keys=[TargetKey("PRIMARY", (("ID", -1),)), TargetKey("m", (("more", -1),)), TargetKey("x", (("", -1),))],
        ),
    )
    assert [c.name for c in at.info.columns] == ["ID", "s"]
    assert [[c.name for c in key] for key in at.info.unique_keys()] == [["ID"]]
    (op,) = operations_in(table, at, binlog.commit_ts, ReadBack(datetime.UTC))
    assert op == RowOp("spec_a", "a", Op.UPDATE, 470604615021232129, {"ID": 7, "s": b"hi"}, {"ID": 7, "s": None})


def test_the_hour_that_comes_twice_is_counted() -> None:
    zone = ZoneInfo("Europe/Berlin")
    column = slave.ColumnInfo(name="t", mysql_type="timestamp", is_primary_key=False, flen=19, decimal=0)
    texts = ["2024-10-27 02:30:00", "2024-10-27 03:30:00", "2024-03-31 01:30:00", "0000-00-00 00:00:00"]
    rows = [slave.TableMutation(type=slave.Insert, row=slave.Row(columns=[slave.Column(string_value=t.encode())])) for t in texts]
    table = slave.Table(schema_name="d", table_name="t", column_info=[column], mutations=rows)
    at = table_of(table, there(column_there("t")))
    how = ReadBack(zone)
    found = [op.values["t"] for op in operations_in(table, at, 1, how)]
    assert found == ["2024-10-27 00:30:00", "2024-10-27 02:30:00", "2024-03-31 00:30:00", "0000-00-00 00:00:00"]
    assert how.doubtful_times == {"d.t": 1}


def test_null_in_a_column_that_is_not_null_at_the_target() -> None:
    column = slave.ColumnInfo(name="n", mysql_type="bigint", is_primary_key=False, flen=20, decimal=0)
    row = slave.TableMutation(type=slave.Insert, row=slave.Row(columns=[slave.Column(is_null=True)]))
    table = slave.Table(schema_name="d", table_name="t", column_info=[column], mutations=[row])
    (op,) = operations_in(table, table_of(table, there(column_there("n", nullable=False))), 1, ReadBack(datetime.UTC))
    assert op.values == {"n": 0}


def test_what_is_no_relay_log_is_an_error() -> None:
    with pytest.raises(Corruption, match="binlog-1: a record is not a binlog of a relay log"):
        binlog_of(b"\xff\xff", "binlog-1")
    column = slave.ColumnInfo(name="n", mysql_type="bigint", is_primary_key=False, flen=20, decimal=0)
    row = slave.TableMutation(type=slave.Insert, row=slave.Row(columns=[]))
    table = slave.Table(schema_name="d", table_name="t", column_info=[column], mutations=[row])
    with pytest.raises(Corruption, match="0 values, but the table has 1 columns"):
        list(operations_in(table, table_of(table, there(column_there("n", nullable=False))), 1, ReadBack(datetime.UTC)))
