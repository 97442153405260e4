"""Rows read back from files are those that were written: every value of the golden cases, and the worked example of wire.md 2.4; and their net change."""

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
from pyspark_tidb_binlog.sinks.engine.row_ops import operations_of
from pyspark_tidb_binlog.sinks.engine.segments import RowsStep
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.plan import PlanLimits
from pyspark_tidb_binlog.sinks.mysql.structure import TargetColumn, TargetKey, TargetTable
from pyspark_tidb_binlog.sinks.replay.file_records import FileDdl, FileRows, of_relay_log
from pyspark_tidb_binlog.sinks.replay.named_rows import FileColumn, FileRow, FileTable, NamedRow, chains_of, file_table, plan_of
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
            read = rows_of(message.payload)
            own = here.filter(pc.equal(here.column("commit_ts"), message.commit_ts))
            own = own.filter(pa.array([i in step.tables for i in own.column("table_id").to_pylist()]))
            images: dict[tuple[str, str, Op], list[NamedRow]] = {}
            tables: dict[str, FileTable] = {}
            for row in read:
                if row.table not in tables:
                    (info,) = (at.info for at in step.tables.values() if (at.schema, at.name) == (row.schema, row.table))
                    tables[row.table] = table_for(row, made_of(info))
                    keys = [[c.name for c in key] for key in tables[row.table].at.info.unique_keys()]
                    assert keys == [[c.name for c in key] for key in info.unique_keys()]
                images.setdefault((row.schema, row.table, row.op), []).append(tables[row.table].read(row, message.commit_ts, how))
            for piece in operations_of(own, step.tables).pieces:
                mine = images.pop((piece.table.schema, piece.table.name, piece.op))
                for values, theirs in (([m.old for m in mine], piece.old), ([m.new for m in mine], piece.new)):
                    if theirs is not None:
                        compared += theirs.num_rows
                        assert values == [tuple(v for k, v in image.items() if k) for image in theirs.to_pylist()]
            assert not images
    assert compared > 20 and not how.doubtful_times


def rows_of(payload: bytes) -> list[FileRow]:
    record = of_relay_log(payload, "here")
    assert isinstance(record, FileRows)
    return list(record.rows)


def table_for(row: FileRow, there: TargetTable) -> FileTable:
    return file_table(1, (row.schema, row.table), row.columns, there)


def read(table: slave.Table, there: TargetTable, how: ReadBack | None = None) -> list[NamedRow]:
    payload = slave.Binlog(type=slave.DML, commit_ts=1, dml_data=slave.DMLData(tables=[table])).SerializeToString()
    found = rows_of(payload)
    return [table_for(found[0], there).read(row, 1, how or ReadBack(datetime.UTC)) for row in found]


def test_the_worked_example() -> None:
    """UPDATE of (id 7, s NULL -> 'hi')."""
    (row,) = rows_of(bytes.fromhex(UPDATE))
    table = table_for(
        row,
        there(
            column_there("ID", nullable=False),
            column_there("s", collation="utf8mb4_bin"),
            column_there("more"),
            replace(column_there("s2"), generated=True),
            keys=[TargetKey("PRIMARY", (("ID", -1),)), TargetKey("m", (("more", -1),)), TargetKey("x", (("", -1),))],
        ),
    )
    at = table.at
    assert [c.name for c in at.info.columns] == ["ID", "s"]
    assert [[c.name for c in key] for key in at.info.unique_keys()] == [["ID"]]
    assert (at.others, at.own_keys) == (("more",), ("x",))
    assert table.read(row, 5, ReadBack(datetime.UTC)) == NamedRow(table, Op.UPDATE, 5, (7, None), (7, b"hi"))


def test_the_hour_that_comes_twice_is_counted() -> None:
    zone = ZoneInfo("Europe/Berlin")
    column = slave.ColumnInfo(name="t", mysql_type="timestamp", is_primary_key=False, flen=19, decimal=0)
    texts = ["2024-10-27 02:30:00", "2024-10-27 03:30:00", "2024-03-31 01:30:00", "0000-00-00 00:00:00"]
    rows = [slave.TableMutation(type=slave.Insert, row=slave.Row(columns=[slave.Column(string_value=t.encode())])) for t in texts]
    table = slave.Table(schema_name="d", table_name="t", column_info=[column], mutations=rows)
    how = ReadBack(zone)
    found = [row.new[0] for row in read(table, there(column_there("t")), how)]
    assert found == ["2024-10-27 00:30:00", "2024-10-27 02:30:00", "2024-03-31 00:30:00", "0000-00-00 00:00:00"]
    assert how.doubtful_times == {"d.t": 1}


def test_null_in_a_column_that_is_not_null_at_the_target() -> None:
    column = slave.ColumnInfo(name="n", mysql_type="bigint", is_primary_key=False, flen=20, decimal=0)
    row = slave.TableMutation(type=slave.Insert, row=slave.Row(columns=[slave.Column(is_null=True)]))
    table = slave.Table(schema_name="d", table_name="t", column_info=[column], mutations=[row])
    assert [row.new for row in read(table, there(column_there("n", nullable=False)))] == [(0,)]


def test_what_is_no_relay_log_is_an_error() -> None:
    with pytest.raises(Corruption, match="binlog-1: a record is not a binlog of a relay log"):
        of_relay_log(b"\xff\xff", "binlog-1")
    column = slave.ColumnInfo(name="n", mysql_type="bigint", is_primary_key=False, flen=20, decimal=0)
    row = slave.TableMutation(type=slave.Insert, row=slave.Row(columns=[]))
    table = slave.Table(schema_name="d", table_name="t", column_info=[column], mutations=[row])
    with pytest.raises(Corruption, match="0 values, but the table has 1 columns"):
        read(table, there(column_there("n", nullable=False)))


def test_a_ddl_says_its_table() -> None:
    data = slave.DDLData(schema_name="D", table_name="T", ddl_query=b"TRUNCATE T")
    record = of_relay_log(slave.Binlog(type=slave.DDL, commit_ts=3, ddl_data=data).SerializeToString(), "here")
    assert isinstance(record, FileDdl)
    assert (record.commit_ts, record.database, record.statement, record.table) == (3, "D", "TRUNCATE T", ("d", "t"))


# The net change.

KEYED = there(column_there("id", nullable=False), column_there("n"), keys=[TargetKey("PRIMARY", (("id", -1),))])
KEYLESS = there(column_there("id"), column_there("n"))


def changed(at_target: TargetTable, *changes: tuple[tuple[int, int] | None, tuple[int, int] | None]) -> list[NamedRow]:
    table = file_table(1, ("d", "t"), [FileColumn("id", 8, "bigint", False), FileColumn("n", 8, "bigint", False)], at_target)
    ops = {(True, False): Op.INSERT, (False, True): Op.DELETE, (False, False): Op.UPDATE}
    return [NamedRow(table, ops[old is None, new is None], ts, old or (), new or ()) for ts, (old, new) in enumerate(changes)]


def sql_of(rows: list[NamedRow], *, safe: bool = False) -> list[str]:
    plan = plan_of(rows, PlanLimits(), Flavour.MARIADB, safe=safe)
    return [s.sql.decode().replace("`d`.`t`", "t") for s in (*plan.deletes, *plan.writes)]


def test_a_row_is_followed_through_its_keys() -> None:
    """Deleted and inserted again it is another one; of equal rows without a key each is followed by itself."""
    moves = [(None, (1, 1)), ((1, 1), (2, 1)), ((2, 1), None), (None, (2, 5)), ((9, 9), (9, 8)), ((9, 8), None)]
    assert chains_of(changed(KEYED, *moves)) == [0, 0, 0, 1, 2, 2]
    equal = [(None, (1, 1)), (None, (1, 1)), ((1, 1), (1, 2)), ((1, 1), None), ((1, 1), None), ((1, 2), None)]
    assert chains_of(changed(KEYLESS, *equal)) == [0, 1, 1, 0, 2, 1]


def test_many_operations_are_few_statements() -> None:
    moves = [
        (None, (1, 1)),
        ((1, 1), (2, 1)),
        ((2, 1), None),
        (None, (2, 5)),
        ((7, 1), (7, 2)),
        ((7, 2), (7, 3)),
        ((9, 9), (9, 8)),
        ((9, 8), None),
    ]
    deletes, changes, inserts = sql_of(changed(KEYED, *moves))
    assert deletes == "DELETE FROM t WHERE `id` IN (9)"
    assert changes.startswith("INSERT INTO t (`id`,`n`) VALUES (7,3) ON DUPLICATE KEY UPDATE")
    assert inserts == "INSERT INTO t (`id`,`n`) VALUES (2,5)"


def test_in_safe_mode_every_image_with_a_key_goes_first() -> None:
    """Of a half applied chunk the target may hold any of them. A row that no key finds is written once more."""
    nullable = there(column_there("id"), column_there("n"), keys=[TargetKey("u", (("id", -1),))])
    moves = [(None, (1, 1)), ((1, 1), (2, 1)), ((5, 5), None)]
    for at_target in (KEYED, nullable):
        (deletes, writes) = sql_of(changed(at_target, *moves), safe=True)
        assert deletes == "DELETE FROM t WHERE `id` IN (1,5,2)" and writes == "REPLACE INTO t (`id`,`n`) VALUES (2,1)"
    deletes, writes = sql_of(changed(KEYLESS, *moves), safe=True)
    assert "5" in deletes and "1" not in deletes.replace("LIMIT 1", "") and writes == "REPLACE INTO t (`id`,`n`) VALUES (2,1)"


def test_nothing_is_changed_in_place_where_the_target_has_a_key_that_the_file_has_not() -> None:
    own = there(*KEYED.columns, replace(column_there("g"), generated=True), keys=[*KEYED.unique_keys, TargetKey("g", (("g", -1),))])
    assert [sql.split()[0] for sql in sql_of(changed(own, ((7, 1), (7, 2))))] == ["DELETE", "INSERT"]
