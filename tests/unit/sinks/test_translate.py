"""Both formats against what a real Drainer made of the golden cases, the worked examples of wire.md 2, and rows that lack columns."""

import datetime
import pickle
import random
from dataclasses import replace
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.jobs.lab.emulator.row_encoder import encode_insert, encode_update
from pyspark_tidb_binlog.schemas.codec import datum
from pyspark_tidb_binlog.schemas.ddl_tokens import QualifiedName
from pyspark_tidb_binlog.schemas.errors import Corruption, SchemaMismatch
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.proto import pb_binlog_pb2 as pb
from pyspark_tidb_binlog.schemas.proto import secondary_binlog_pb2 as slave
from pyspark_tidb_binlog.schemas.tableinfo import ColumnFlag, ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.engine.batch import rows_between
from pyspark_tidb_binlog.sinks.engine.choice import chosen
from pyspark_tidb_binlog.sinks.engine.segments import RowsStep
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from pyspark_tidb_binlog.sinks.routing.table_filter import TableFilter
from pyspark_tidb_binlog.sinks.translate.binlog_format import BinlogFormat, HandleLayout, TableRun, creates_database, images_of
from pyspark_tidb_binlog.sinks.translate.column_values import in_zone, mysql_type, process_zone
from pyspark_tidb_binlog.sinks.translate.pb_binlogs import PbBinlogs
from pyspark_tidb_binlog.sinks.translate.secondary_binlogs import SecondaryBinlogs
from pyspark_tidb_binlog.sinks.translate.translation import Translation
from tests.support.drawn_rows import NEWEST, NOT_NULL, OLDEST, at, column, table
from tests.support.golden_messages import case_steps, checksums, checksums_from_drainer, from_drainer, ours

FORMS: dict[str, type[PbBinlogs] | type[SecondaryBinlogs]] = {"pb": PbBinlogs, "slave": SecondaryBinlogs}
SHANGHAI = ZoneInfo("Asia/Shanghai")
BIG = 470604615020969985


def binlog(name: str, payload: bytes) -> Any:
    return (pb if name == "pb" else slave).Binlog.FromString(payload)


@pytest.mark.shows("wire gotcha 8", "Kafka messages")
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("case", ["types", "keys", "txn", "beyond_mysql"])
def test_messages_are_a_real_drainers_byte_for_byte(case: str, name: str) -> None:
    found = ours(case, FORMS[name]())
    assert found == from_drainer(case, f"drainer.{name}")
    assert [binlog(name, m).SerializeToString() for m in found] == found


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("case", ["bank", "online"])
def test_thousands_of_messages_are_a_real_drainers(case: str, name: str) -> None:
    """``online``: three writers while 40 DDLs change the columns of their tables."""
    found = ours(case, FORMS[name]())
    assert len(found) > 3000 and checksums(found) == checksums_from_drainer(case, f"drainer.{name}")


@pytest.mark.shows("drainer gotcha 8")
@pytest.mark.parametrize("name", FORMS)
def test_timestamps_are_in_the_zone_of_the_process(name: str) -> None:
    found, wanted = ours("types", FORMS[name](SHANGHAI)), from_drainer("types", f"drainer-shanghai.{name}")
    assert found == wanted != from_drainer("types", f"drainer.{name}")


@pytest.mark.parametrize("name", FORMS)
def test_only_what_a_real_drainer_gets_wrong_differs(name: str) -> None:
    """After RENAME TABLE a TO b, c TO d it names rows by the old name; it ends at a row of a table that EXCHANGE PARTITION gave another id."""
    theirs = {binlog(name, m).commit_ts: m for m in from_drainer("ddl", f"drainer.{name}")}
    mine = {binlog(name, m).commit_ts: m for m in ours("ddl", FORMS[name]())}
    renamed, exchanged = sorted(ts for ts in mine if mine[ts] != theirs.get(ts))
    assert len(mine) == 88 and mine.keys() - theirs.keys() == {exchanged}
    names = []
    for found in (theirs[renamed], mine[renamed], mine[exchanged]):
        data = binlog(name, found).dml_data
        names.append((data.events if name == "pb" else data.tables)[0].table_name)
    assert names == ["t", "t_old", "ed"]


# The worked examples of wire.md 2.


def example(tp: int, **more: Any) -> ColumnInfo:
    return replace(column(2, tp, **more), name="s")


def run_of(info: Any, *changes: tuple[int, bytes], schema: str = "spec_a", name: str = "a", version: int = NEWEST, **more: Any) -> TableRun:
    where = replace(at(info, **more), schema=schema, name=name)
    return TableRun(where, version, changes)


ID = replace(column(1, ColumnType.BIGINT, NOT_NULL | ColumnFlag.PRI_KEY, flen=20, decimal=0), name="id")
NAME = example(ColumnType.VARCHAR, flen=20, decimal=0, charset="utf8mb4", collate="utf8mb4_bin")


@pytest.mark.shows("wire gotcha 10")
def test_worked_examples() -> None:
    info = replace(table((ID, NAME), pk_is_handle=True), name="a")
    insert = (int(Op.INSERT), encode_insert(info, {1: 7, 2: "hi"}))
    found = PbBinlogs().transaction(BIG, [run_of(info, insert)])
    assert found.hex() == (
        "0800108180f0dff68cfbc3061a3b0a390a06737065635f61120161180022130a0269641201081a06626967696e742202080e22150a017312010f1a07"
        "766172636861722204020468" + "69"
    )
    update = (int(Op.UPDATE), encode_update(info, {1: 7, 2: None}, {1: 7, 2: "hi"}))
    found = SecondaryBinlogs().transaction(470604615021232129, [run_of(info, update)])
    assert found.hex() == (
        "080010818080e0f68cfbc3061a5e0a5c0a06737065635f611201611a120a0269641206626967696e741801201428001a120a017312077661726368617218"
        "002014280022180801120a0a0210070a04320268691a080a0210070a0208012a0d0a075052494d41525912026964"
    )
    query = "CREATE TABLE `t` (`a` INT);"
    assert PbBinlogs().ddl(470604615008911360, QualifiedName("spec_a", "t"), query).hex() == (
        "080110808090daf68cfbc306222a7573652060737065635f61603b20435245415445205441424c4520607460202860616020494e54293b3b"
    )
    assert SecondaryBinlogs().ddl(5, QualifiedName("d", ""), "CREATE DATABASE `d`;").hex() == (
        "08011005221b0a016412001a14435245415445204441544142415345206064603b"
    )


@pytest.mark.shows("wire gotcha 9")
def test_a_ddl_chooses_its_database_unless_it_makes_it() -> None:
    form = PbBinlogs()

    def text(schema: str, query: str) -> bytes:
        return bytes(pb.Binlog.FromString(form.ddl(1, QualifiedName(schema, ""), query)).ddl_query)

    assert text("a`b", "DROP TABLE `x`;") == b"use `a``b`; DROP TABLE `x`;;"
    assert text("d", "CREATE DATABASE `d`;") == b"CREATE DATABASE `d`;;"
    assert text("d", "create /* c */ schema if not exists d") == b"create /* c */ schema if not exists d;"
    assert text("", "FLASHBACK CLUSTER") == b"FLASHBACK CLUSTER"
    assert text("d", "CREATE TABLE `database` (a int)").startswith(b"use ") and not creates_database("not sql")


# Rows that lack columns, and values that only old rows have.


def only_column(name: str, col: ColumnInfo, *, version: int = OLDEST, zone: datetime.tzinfo = datetime.UTC) -> Any:
    """How an insert that lacks ``col`` is handed on: the pb datum in hex, or (field, value) of the Kafka column."""
    info = table((ID, replace(col, id=3, offset=1, name="c")), pk_is_handle=True)
    bare = table((ID,), pk_is_handle=True)
    run = run_of(info, (int(Op.INSERT), encode_insert(bare, {1: 1})), version=version)
    message = binlog(name, FORMS[name](zone).transaction(1, [run]))
    if name == "pb":
        return pb.column.FromString(message.dml_data.events[0].row[1]).value.hex()
    ((field, value),) = message.dml_data.tables[0].mutations[0].row.columns[1].ListFields()
    return field.name, value


@pytest.mark.parametrize(
    ("tp", "settings", "in_pb", "in_slave"),
    [
        (ColumnType.INT, {}, "00", ("is_null", True)),
        (ColumnType.INT, {"origin_default": "5"}, "020235", ("int64_value", 5)),
        (ColumnType.BIGINT, {"origin_default": "5", "flag": ColumnFlag.UNSIGNED}, "020235", ("uint64_value", 5)),
        (ColumnType.INT, {"flag": NOT_NULL}, "0800", ("int64_value", 0)),
        (ColumnType.INT, {"flag": NOT_NULL | ColumnFlag.UNSIGNED}, "0900", ("uint64_value", 0)),
        (ColumnType.DOUBLE, {"origin_default": "1.5"}, "0206312e35", ("double_value", 1.5)),
        (ColumnType.FLOAT, {"flag": NOT_NULL}, "058000000000000000", ("double_value", 0.0)),
        (ColumnType.DECIMAL, {"origin_default": "1.50", "decimal": 2}, "0208312e3530", ("string_value", b"1.50")),
        (ColumnType.DECIMAL, {"flag": NOT_NULL, "decimal": 2}, "020230", ("string_value", b"0")),
        (ColumnType.YEAR, {"origin_default": "2024"}, "020832303234", ("string_value", b"2024")),
        (ColumnType.YEAR, {"flag": NOT_NULL | ColumnFlag.UNSIGNED}, "0900", ("string_value", b"0")),
        (ColumnType.ENUM, {"origin_default": "B", "elems": ("a", "b")}, "0902", ("uint64_value", 2)),
        (ColumnType.ENUM, {"flag": NOT_NULL, "elems": ("a", "b")}, "0901", ("uint64_value", 1)),
        (ColumnType.SET, {"origin_default": "a,b", "elems": ("a", "b")}, "0903", ("uint64_value", 3)),
        (ColumnType.BIT, {"origin_default_bit": b"\x01\x01", "flen": 9}, "098102", ("bytes_value", b"\x01\x01")),
        (ColumnType.BIT, {"flag": NOT_NULL, "flen": 9}, "0900", ("bytes_value", b"")),
        (ColumnType.STRING, {"flag": NOT_NULL, "flen": 2}, "02040000", ("bytes_value", b"\0\0")),
        (ColumnType.STRING, {"flag": NOT_NULL, "flen": 2, "charset": "utf8mb4"}, "0200", ("string_value", b"")),
        (ColumnType.BLOB, {"flag": NOT_NULL}, "0200", ("bytes_value", b"")),
        (ColumnType.DATE, {"flag": NOT_NULL}, "02" + "14" + b"0000-00-00".hex(), ("string_value", b"0000-00-00")),
        (
            ColumnType.DATETIME,
            {"flag": NOT_NULL, "decimal": 3},
            "0226" + b"0000-00-00 00:00:00".hex(),
            ("string_value", b"0000-00-00 00:00:00"),
        ),
        (ColumnType.TIME, {"flag": NOT_NULL, "decimal": 3}, "0210" + b"00:00:00".hex(), ("string_value", b"00:00:00")),
        (ColumnType.JSON, {"flag": NOT_NULL}, "02086e756c6c", ("bytes_value", b"null")),
        (ColumnType.TIMESTAMP, {"origin_default": "0000-00-00 00:00:00"}, "0226" + b"0000-00-00 00:00:00".hex(), None),
        (ColumnType.TIMESTAMP, {"origin_default": "2020-01-01 00:00:00.5"}, "022a" + b"2020-01-01 08:00:00.5".hex(), None),
    ],
)
def test_a_column_that_an_insert_lacks(tp: int, settings: dict[str, Any], in_pb: str, in_slave: Any) -> None:
    col = column(3, tp, **settings)
    assert only_column("pb", col, zone=SHANGHAI) == in_pb
    if in_slave is not None:
        assert only_column("slave", col, zone=SHANGHAI) == in_slave


def test_the_default_is_that_of_the_rows_own_version() -> None:
    newer = replace(column(3, ColumnType.VARCHAR, charset="utf8mb4"), offset=1, name="c", origin_default="new")
    info = table((ID, newer), pk_is_handle=True)
    older = table((ID, replace(newer, origin_default="old")), pk_is_handle=True)
    insert = (int(Op.INSERT), encode_insert(table((ID,), pk_is_handle=True), {1: 1}))
    where = at(info, (OLDEST, older))
    message = pb.Binlog.FromString(PbBinlogs().transaction(1, [TableRun(where, OLDEST, [insert])]))
    assert pb.column.FromString(message.dml_data.events[0].row[1]).value == datum.encode_bytes(b"old")


@pytest.mark.parametrize("name", FORMS)
def test_an_update_lacks_a_column_only_while_a_ddl_of_the_table_runs(name: str) -> None:
    extra = replace(column(3, ColumnType.VARCHAR, charset="utf8mb4", origin_default="x"), offset=1, name="c")
    info, bare = table((ID, extra), pk_is_handle=True), table((ID,), pk_is_handle=True)
    update = (int(Op.UPDATE), encode_update(bare, {1: 1}, {1: 1}))
    form = FORMS[name]()
    message = binlog(name, form.transaction(1, [run_of(info, update, version=OLDEST)]))
    if name == "pb":
        filled = pb.column.FromString(message.dml_data.events[0].row[1])
        assert (filled.value, filled.changed_value) == (b"\x02\x02x", b"\x02\x02x")
    else:
        mutation = message.dml_data.tables[0].mutations[0]
        assert [r.columns[1].string_value for r in (mutation.row, mutation.change_row)] == [b"x", b"x"]
    with pytest.raises(Corruption, match=r"spec_a\.a .*is missing in an update"):
        form.transaction(1, [run_of(info, update, version=NEWEST)])
    assert form.transaction(1, [run_of(info, update, version=NEWEST, dropping=True)])


@pytest.mark.parametrize("name", FORMS)
def test_a_decimal_has_the_digits_with_which_it_was_stored(name: str) -> None:
    wide = replace(column(2, ColumnType.DECIMAL, flen=10, decimal=4), name="s")
    narrow = table((ID, replace(wide, decimal=2)), pk_is_handle=True)
    run = run_of(table((ID, wide), pk_is_handle=True), (int(Op.INSERT), encode_insert(narrow, {1: 1, 2: "1.5"})))
    assert b"1.50" in FORMS[name]().transaction(1, [run])
    assert b"1.500" not in FORMS[name]().transaction(1, [run])


def test_values_that_no_utf8_text_holds_go_through() -> None:
    info = table((ID, NAME), pk_is_handle=True)
    run = run_of(info, (int(Op.INSERT), encode_insert(info, {1: 1, 2: b"\xe9\xff"})))
    message = slave.Binlog.FromString(SecondaryBinlogs().transaction(1, [run]))
    assert message.dml_data.tables[0].mutations[0].row.columns[1].string_value == b"\xe9\xff"


def test_every_type_has_a_name() -> None:
    named = {tp: mysql_type(column(1, tp, charset="utf8mb4")) for tp in ColumnType}
    assert len(named) == len(set(named.values())) and named[ColumnType.BLOB] == "text"
    assert mysql_type(column(1, ColumnType.VARCHAR)) == "varbinary" and mysql_type(column(1, ColumnType.VAR_STRING)) == "var_string"


# Damage.


@pytest.mark.parametrize(
    ("op", "row", "why"),
    [
        (Op.INSERT, "", "ends within"),
        (Op.INSERT, "0802 0804 0802 0804 0804", "twice"),
        (Op.UPDATE, "0802 0804 0802 0804 0802 0804", "three times"),
        (Op.UPDATE, "0804 020468", "bytes"),
        (Op.DELETE, "0902 0804", "column id with flag 0x09"),
        (Op.DELETE, "0804 0201", "negative"),
        (Op.DELETE, "0804 fb", "unknown datum flag"),
        (Op.DELETE, "0804 06", "ends within"),
    ],
)
def test_damaged_rows(op: Op, row: str, why: str) -> None:
    with pytest.raises(Corruption, match=why):
        images_of(HandleLayout.of(table((ID, NAME), pk_is_handle=True)), op, bytes.fromhex(row))


@pytest.mark.parametrize("name", FORMS)
def test_a_damaged_value_names_its_column_and_row(name: str) -> None:
    info = table((ID, replace(column(2, ColumnType.DATETIME), name="s")), pk_is_handle=True)
    row = bytes.fromhex("0802 0802 0804 09ffffffffffffffffff01")
    with pytest.raises(Corruption, match=r"DELETE row of table spec_a\.a .*column s \(id 2\).*080208020804"):
        FORMS[name]().transaction(1, [run_of(info, (int(Op.DELETE), row))])


# Transactions.


def all_messages(form: BinlogFormat, rows: pa.Table, filtered: TableFilter = TableFilter()) -> list[bytes]:  # noqa: B008
    _, _, steps = case_steps("txn")
    out: list[bytes] = []
    for step in steps:
        if isinstance(step, RowsStep):
            part = rows_between(rows, step.after_ts, step.upto_ts)
            out += [m.payload for m in Translation.of(chosen(step, Selection(filtered)), form).messages(part)]
    return out


def test_neither_order_nor_doubled_events_change_a_message() -> None:
    _, rows, _ = case_steps("txn")
    places = [*range(rows.num_rows), *range(0, rows.num_rows, 2)]
    random.Random(7).shuffle(places)
    for form in (PbBinlogs(), SecondaryBinlogs()):
        assert all_messages(form, rows.take(places)) == all_messages(form, rows) != []
        assert all_messages(pickle.loads(pickle.dumps(form)), rows) == all_messages(form, rows)


def test_databases_that_are_not_replicated_are_left_out() -> None:
    _, rows, _ = case_steps("txn")
    assert all_messages(PbBinlogs(), rows, TableFilter((), ("~.*",))) == []


def test_a_table_that_nobody_knows_is_an_error() -> None:
    _, rows, steps = case_steps("txn")
    step = next(s for s in steps if isinstance(s, RowsStep) and s.row_events)
    with pytest.raises(SchemaMismatch, match="the DDL history has no such tables"):
        list(Translation({}, PbBinlogs(), frozenset()).messages(rows_between(rows, step.after_ts, step.upto_ts)))


# Zones.


def test_a_moment_in_a_zone_keeps_its_fraction_and_a_zero_date_stays() -> None:
    assert in_zone("2024-03-31 00:59:59.123", ZoneInfo("Europe/Berlin")) == "2024-03-31 01:59:59.123"
    assert in_zone("2024-03-31 01:00:00", ZoneInfo("Europe/Berlin")) == "2024-03-31 03:00:00"
    assert in_zone("0000-00-00 00:00:00", SHANGHAI) == "0000-00-00 00:00:00"
    assert in_zone("9999-12-31 23:00:00", SHANGHAI) == "9999-12-31 23:00:00"


def test_the_zone_of_the_process_is_that_of_tz_or_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name, zone in (("Asia/Shanghai", SHANGHAI), (":Asia/Shanghai", SHANGHAI), ("", datetime.UTC), ("UTC", datetime.UTC)):
        monkeypatch.setenv("TZ", name)
        assert process_zone() == zone and pickle.loads(pickle.dumps(process_zone())) == zone
    monkeypatch.delenv("TZ")
    assert process_zone(tmp_path / "absent") is datetime.UTC
    link = tmp_path / "localtime"
    link.symlink_to("/usr/share/zoneinfo/Asia/Shanghai")
    assert process_zone(link) == SHANGHAI
