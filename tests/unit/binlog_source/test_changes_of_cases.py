"""Recorded binlogs of a real TiDB as changes, without Pumps and Spark: what they leave is what TiDB had."""

import gzip
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pyspark_tidb_binlog.binlog_source.changes import change_decoder
from pyspark_tidb_binlog.binlog_source.changes.change_decoder import ChangeDecoder, DecodedAs
from pyspark_tidb_binlog.binlog_source.changes.change_options import ChangeOptions, SchemaEvolution
from pyspark_tidb_binlog.binlog_source.changes.merged_pumps import merged
from pyspark_tidb_binlog.binlog_source.wire import recorded_case
from pyspark_tidb_binlog.jobs.lab.emulator.row_encoder import encode_insert
from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, kind_of
from pyspark_tidb_binlog.schemas.changes.table_names import NamedTable
from pyspark_tidb_binlog.schemas.changes.table_shape import shape_of
from pyspark_tidb_binlog.schemas.changes.typed_cells import InvalidDates
from pyspark_tidb_binlog.schemas.codec.datum import encode_int
from pyspark_tidb_binlog.schemas.ddl_jobs import Job, JobType
from pyspark_tidb_binlog.schemas.errors import ConfigError, SchemaMismatch
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from pyspark_tidb_binlog.schemas.stages import RAW
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, TableInfo
from tests.support import ddl_jobs
from tests.support.golden_case import GOLDEN, load_case
from tests.support.recorded_tables import comparable, recorded_rows

load = cache(recorded_case.load)


@dataclass(frozen=True)
class Told:
    """A history that has everything."""

    history: SchemaHistory

    def job(self, job_id: int) -> Job:
        return self.history.jobs[job_id]

    def covering(self, versions: Iterable[int], tables: Mapping[int, int], options: ChangeOptions) -> SchemaHistory:
        assert set(tables) <= set(self.history.tracks)
        return self.history


def history_of(name: str) -> Told:
    return Told(load_case(name).history)


def transactions(name: str, size: int) -> Iterator[pa.RecordBatch]:
    """The case's transactions, ``size`` at a time from each Pump."""
    case = load(GOLDEN / name)

    def of(number: int) -> Iterator[pa.RecordBatch]:
        binlogs = [binlog_pb2.Binlog.FromString(payload) for payload in case.pumps[number]]
        rows = [
            {"pump": f"pump-{number}", "start_ts": b.start_ts, "commit_ts": b.commit_ts, "bucket": 0, "payload": b.SerializeToString()}
            for b in binlogs
            if b.tp == binlog_pb2.Commit and case.start_ts < b.commit_ts <= case.end_ts
        ]
        for begin in range(0, len(rows), size):
            yield pa.RecordBatch.from_pylist(rows[begin : begin + size], schema=RAW)

    return merged([of(number) for number in range(len(case.pumps))])


def changes(name: str, size: int, decoded_as: DecodedAs | None = None, known: Told | None = None) -> pa.Table:
    known = known or history_of(name)
    decoder = ChangeDecoder(decoded_as or DecodedAs(), known, int(known.history.version_at(load(GOLDEN / name).start_ts)))
    return pa.Table.from_batches([rows for batch in transactions(name, size) for rows in decoder.changes_of(batch)])


def value_of(cell: Any) -> Any:
    from pyspark.sql.types import VariantVal

    return None if cell is None else VariantVal(cell["value"], cell["metadata"]).toPython()


def left_by(rows: list[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The tables that changes leave, if each is made where the row is as its ``before`` says."""
    tables: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if row["op"] == "ddl":
            continue
        table = tables.setdefault((row["database"], row["table"]), [])
        before, after = value_of(row["before"]), value_of(row["after"])
        if before is not None:
            table.remove(before)
        if after is not None:
            table.append(after)
    return tables


@pytest.mark.parametrize("name", ["types", "keys", "txn"])
def test_changes_leave_the_recorded_tables(name: str) -> None:
    known = history_of(name)
    left = left_by(changes(name, 1000).to_pylist())
    for database, table in load(GOLDEN / name).tables:
        info = known.history.find(database, table, known.history.newest_version).info  # type: ignore[union-attr]
        columns = info.target_columns()
        got = [tuple(comparable(c, as_text(c, row[c.name])) for c in columns) for row in left.get((database, table), [])]
        wanted = [
            tuple(None if cell == "null" else cell for cell in row) for row in recorded_rows(GOLDEN / name, f"{database}.{table}", info)
        ]
        assert sorted(got, key=repr) == sorted(wanted, key=repr), table


@pytest.mark.parametrize("name", ["keys", "ddl"])
def test_changes_do_not_depend_on_where_they_are_cut(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = changes(name, 100_000)
    monkeypatch.setattr(change_decoder, "_MOST_BYTES", whole.nbytes // 50)
    in_pieces = changes(name, 100_000)
    assert in_pieces.equals(whole) and in_pieces.column("key").num_chunks > whole.column("key").num_chunks + 5


def as_text(column: ColumnInfo, value: Any) -> Any:
    is_json = kind_of(column) is CellKind.JSON and value is not None
    return json.dumps(value, default=int) if is_json else value


@pytest.mark.parametrize(("name", "size"), [("types", 7), ("keys", 7), ("txn", 7), ("ddl", 7), ("online", 1000), ("beyond_mysql", 7)])
def test_changes_do_not_depend_on_what_is_read_together(name: str, size: int) -> None:
    whole = changes(name, 100_000)
    assert whole.num_rows > 30
    assert changes(name, size).equals(whole)
    order = [(ts, op != "ddl", seq) for ts, op, seq in zip(*(whole.column(n).to_pylist() for n in ("commit_ts", "op", "seq")), strict=True)]
    assert order == sorted(order) and len(order) == len(set(order))


@pytest.mark.parametrize(("name", "table"), [("types", "g_types.times"), ("types", "g_types.strs"), ("keys", "")])
def test_the_columns_of_one_table(name: str, table: str) -> None:
    known = history_of(name)
    for database, of in [tuple(table.split("."))] if table else load(GOLDEN / name).tables:
        shape = shape_of(
            NamedTable(database, of), known.history, int(known.history.version_at(load(GOLDEN / name).start_ts)), InvalidDates.STRING
        )
        options = ChangeOptions(table=shape.name, evolution=SchemaEvolution.IGNORE)
        rows = changes(name, 50, DecodedAs(options, shape), known)
        assert rows.schema == shape.schema
        info = known.history.find(database, of, known.history.newest_version).info  # type: ignore[union-attr]
        table_left: list[tuple[Any, ...]] = []
        for row in rows.to_pylist():
            cells = tuple(comparable(c, row[c.name]) for c in shape.columns)
            if row["_change_type"] in ("delete", "update_preimage"):
                table_left.remove(cells)
            else:
                table_left.append(cells)
        assert sorted(table_left, key=repr) == recorded_rows(GOLDEN / name, f"{database}.{of}", info), of


def test_a_key_finds_its_row() -> None:
    rows = changes("keys", 1000).to_pylist()
    seen: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        if row["op"] == "ddl":
            continue
        key, before, after = (value_of(row[name]) for name in ("key", "before", "after"))
        image = after if row["op"] == "insert" else before
        assert key and (set(key) == {"_tidb_rowid"} or all(image[name] == value for name, value in key.items()))
        live = seen.setdefault((row["database"], row["table"]), set())
        if row["op"] == "insert":
            assert repr(key) not in live
            live.add(repr(key))
        else:
            assert repr(key) in live
            live.discard(repr(key))
            if row["op"] == "update":
                live.add(repr({name: after.get(name, value) for name, value in key.items()}))
    assert len(seen) > 5 and np.sum([len(live) for live in seen.values()]) > 0


@pytest.mark.parametrize("shaped", [False, True])
def test_a_record_batch_is_not_a_thousand_times_its_binlog(shaped: bool) -> None:
    """Rows of a few bytes in a table of many columns with long names."""
    varchars = (ddl_jobs.column(n, f"a{n:050d}", ddl_jobs.VARCHAR, origin_default="x" * 20) for n in range(2, 300))
    wide = ddl_jobs.table(50, "t", [ddl_jobs.column(1, "id", {**ddl_jobs.INT, "Flag": 4099}), *varchars])
    known = ddl_jobs.history(ddl_jobs.database(1), ddl_jobs.job(2, JobType.CREATE_TABLE, wide))
    value = binlog_pb2.PrewriteValue(schema_version=2)
    mutation = value.mutations.add(table_id=50)
    for number in range(5000):
        mutation.inserted_rows.append(encode_int(number) + b"\0")
        mutation.sequence.append(binlog_pb2.Insert)
    binlog = binlog_pb2.Binlog(tp=binlog_pb2.Commit, start_ts=1, commit_ts=2, prewrite_value=value.SerializeToString())
    row = {"pump": "p", "start_ts": 1, "commit_ts": 2, "bucket": 0, "payload": binlog.SerializeToString()}
    name = NamedTable("d", "t")
    as_ = DecodedAs(ChangeOptions(table=name), shape_of(name, known, 2, InvalidDates.NULL)) if shaped else DecodedAs()
    given = list(ChangeDecoder(as_, Told(known), 2).changes_of(pa.RecordBatch.from_pylist([row], schema=RAW)))
    assert sum(map(len, given)) == 5000 and max(rows.nbytes for rows in given) < 48 << 20
    seqs = np.concatenate([rows.column("_change_seq" if shaped else "seq").to_numpy() for rows in given])
    assert (seqs == np.arange(5000)).all() and (len(given) > 2 or shaped)


@pytest.mark.parametrize("shaped", [False, True])
def test_a_value_that_its_column_cannot_hold_is_an_error_with_its_place(shaped: bool) -> None:
    def described(digits: int) -> dict[str, Any]:
        money = {**ddl_jobs.INT, "Tp": 246, "Flen": 10, "Decimal": digits}
        return ddl_jobs.table(50, "t", [ddl_jobs.column(1, "id", {**ddl_jobs.INT, "Flag": 4099}), ddl_jobs.column(2, "money", money)])

    known = ddl_jobs.history(ddl_jobs.database(1), ddl_jobs.job(2, JobType.CREATE_TABLE, described(2)))
    value = binlog_pb2.PrewriteValue(schema_version=2)
    written = encode_insert(TableInfo.from_json(described(3)), {1: 1, 2: "1.234"})
    value.mutations.add(table_id=50, inserted_rows=[written], sequence=[binlog_pb2.Insert])
    binlog = binlog_pb2.Binlog(tp=binlog_pb2.Commit, start_ts=1, commit_ts=2, prewrite_value=value.SerializeToString())
    row = {"pump": "p", "start_ts": 1, "commit_ts": 2, "bucket": 0, "payload": binlog.SerializeToString()}
    name = NamedTable("d", "t")
    as_ = DecodedAs(ChangeOptions(table=name), shape_of(name, known, 2, InvalidDates.NULL)) if shaped else DecodedAs()
    with pytest.raises(SchemaMismatch, match="d.t, commit_ts 2 to 2: .*column money"):
        list(ChangeDecoder(as_, Told(known), 2).changes_of(pa.RecordBatch.from_pylist([row], schema=RAW)))


def changed_once(known: Told) -> tuple[NamedTable, Job]:
    """A table of the case and the last job that changed its columns."""
    for job in reversed(known.history.ordered):
        if job.type in (JobType.ADD_COLUMN, JobType.DROP_COLUMN, JobType.TRUNCATE_TABLE) and job.table_info is not None:
            return NamedTable(job.schema_name, job.table_name), job
    raise AssertionError


def test_columns_that_were_taken_before_a_ddl_are_not_read_behind_it() -> None:
    """The query was described before the DDL and began behind it: its span has no DDL binlog."""
    known = history_of("ddl")
    name, job = changed_once(known)
    shape = shape_of(name, known.history, job.version - 1, InvalidDates.NULL)
    decoder = ChangeDecoder(DecodedAs(ChangeOptions(table=name), shape), known, int(job.version))
    with pytest.raises(SchemaMismatch, match=rf"DDL job {job.id} .*changed {name}"):
        for batch in transactions("ddl", 50):
            list(decoder.changes_of(batch))


def test_a_query_that_is_started_again_behind_a_ddl_does_not_read_over_it() -> None:
    """Without a word about the DDL its error comes again, also if the columns taken now are those behind it."""
    known = history_of("ddl")
    name, job = changed_once(known)
    now = shape_of(name, known.history, int(job.version), InvalidDates.NULL)
    assert now.changed_by(job, known.history)
    assert not replace(now, agreed=now.version).changed_by(job, known.history)


def of_table(name: str, table: str, evolution: SchemaEvolution) -> pa.Table:
    known, of = history_of(name), NamedTable.of(table)
    shape = shape_of(of, known.history, int(known.history.version_at(load(GOLDEN / name).start_ts)), InvalidDates.NULL)
    return changes(name, 50, DecodedAs(ChangeOptions(table=of, evolution=evolution), shape), known)


@pytest.mark.parametrize("table", ["g_ddl.p", "g_ddl.ph", "g_ddl.ep"])
def test_changes_in_partitions_are_the_tables(table: str) -> None:
    """The same rows as among all tables, in columns with their types."""
    typed = of_table("ddl", table, SchemaEvolution.IGNORE)
    assert [str(kind) for kind in typed.schema.types[:-4]] == ["int32", *(["date32[day]"] if table == "g_ddl.p" else []), "int32"]
    own = [
        row for row in changes("ddl", 1000).to_pylist() if (row["database"], row["table"]) == tuple(table.split(".")) and row["op"] != "ddl"
    ]
    images = [value_of(row[side]) for row in own for side in ("before", "after") if row[side] is not None]
    assert [{name: row[name] for name in typed.column_names[:-4]} for row in typed.to_pylist()] == images
    assert len(own) >= 3


def test_ddls_of_partitions_are_rows() -> None:
    told = [(row["table"], row["ddl"]) for row in changes("ddl", 1000).to_pylist() if row["op"] == "ddl"]
    found = [(table, word) for table, ddl in told for word in ("ADD", "TRUNCATE", "DROP", "EXCHANGE") if f" {word} PARTITION" in ddl]
    assert found == [("p", "ADD"), ("p", "TRUNCATE"), ("p", "DROP"), ("ed", "EXCHANGE")]


@pytest.mark.parametrize(("table", "words"), [("p", "TRUNCATE PARTITION"), ("ep", "EXCHANGE PARTITION"), ("ed", "EXCHANGE PARTITION")])
def test_what_empties_or_swaps_a_partition_ends_the_query(table: str, words: str) -> None:
    """ADD PARTITION, before that, does not."""
    with pytest.raises(SchemaMismatch, match=f"changed g_ddl.{table}, .*{words}.*schemaCommitTs"):
        of_table("ddl", f"g_ddl.{table}", SchemaEvolution.FAIL)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("case.json", b"{", "case.json does not describe a recorded case: JSONDecodeError"),
        ("case.json", b"{}", "case.json does not describe a recorded case: KeyError"),
        ("pump-1.binlogs.gz", None, "is not a recorded case: it has no pump-1.binlogs.gz"),
        ("pump-1.binlogs.gz", b"", r"pump-1.binlogs.gz of a recorded case cannot be read \(it is empty\)"),
        ("pump-1.binlogs.gz", b"version https://", "pump-1.binlogs.gz of a recorded case cannot be read .*Not a gzipped file"),
        ("pump-1.binlogs.gz", gzip.compress(b"\x02ab", mtime=0)[:-9], "pump-1.binlogs.gz of a recorded case cannot be read .*ended before"),
        ("pump-1.binlogs.gz", gzip.compress(b"\x02ab\x80", mtime=0), "pump-1.binlogs.gz is truncated: its last 1 bytes begin a binlog"),
        ("pump-2.binlogs.gz", gzip.compress(b"\x02a", mtime=0), "pump-2.binlogs.gz is truncated: a binlog of 2 bytes"),
    ],
)
def test_half_a_case_is_refused(tmp_path: Path, name: str, content: bytes | None, said: str) -> None:
    """A copy that was interrupted: none of the rows that it lacks may be missing in silence."""
    case = shutil.copytree(GOLDEN / "txn", tmp_path / "txn")
    (case / name).unlink()
    if content is not None:
        (case / name).write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        recorded_case.load(case)
