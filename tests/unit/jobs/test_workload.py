"""The workload's mix: the same seed gives the same content, sessions keep apart, every kind of table and DDL comes about."""

import random
from collections import Counter

import pytest

from pyspark_tidb_binlog.jobs.lab.emulator.row_encoder import encoder_of
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table, parsed, table_json
from pyspark_tidb_binlog.jobs.lab.emulator.upstream import Upstream
from pyspark_tidb_binlog.jobs.lab.emulator.values import EVERY_TYPE, comparable, form_of, value_for
from pyspark_tidb_binlog.jobs.lab.emulator.workload import DdlMix, WorkloadConfig, WorkloadSession, create_tables
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from pyspark_tidb_binlog.schemas.tableinfo import ColumnType
from tests.support.fakes.written import Written


def run(seed: int, rounds: int = 50, sessions: int = 3) -> tuple[Upstream, Written, list[WorkloadSession], DdlMix]:
    written = Written()
    upstream = Upstream(written)
    config = WorkloadConfig(seed=seed, sessions=sessions)
    tables = create_tables(upstream)
    made = [WorkloadSession(upstream, number, config, tables) for number in range(sessions)]
    ddl = DdlMix(upstream, made, config, tables)
    chance = random.Random(rounds)
    for _ in range(rounds):
        # which session comes first is not fixed by the seed
        turns = [session for session in made for _ in range(5)]
        chance.shuffle(turns)
        for session in turns:
            session.transaction()
        ddl.step()
    return upstream, written, made, ddl


def content(upstream: Upstream) -> dict[str, Counter[str]]:
    return {name: Counter(repr(row) for row in upstream.rows(name).values()) for name in upstream.tables()}


@pytest.fixture(scope="module")
def ran() -> tuple[Upstream, Written, list[WorkloadSession], DdlMix]:
    return run(1)


def test_the_same_seed_gives_the_same_content_in_any_order_of_sessions(ran):
    again = run(1, rounds=50)
    assert content(ran[0]) == content(again[0])
    assert content(ran[0]) != content(run(2)[0])


def test_every_kind_of_change_is_written_to_every_table(ran):
    upstream, written, _, _ = ran
    kinds: dict[int, Counter[int]] = {}
    for payload in written.payloads:
        binlog = binlog_pb2.Binlog.FromString(payload)
        for mutation in binlog_pb2.PrewriteValue.FromString(binlog.prewrite_value).mutations:
            kinds.setdefault(mutation.table_id, Counter()).update(mutation.sequence)
    ids = {table.name: table.id for table in upstream.store.tables.values()}
    for name in ("account", "counter", "member", "word", "ticket", "event", "everything"):
        assert set(kinds[ids[name]]) == {binlog_pb2.Insert, binlog_pb2.Update, binlog_pb2.DeleteRow}, name
    assert any(
        len(binlog_pb2.PrewriteValue.FromString(binlog_pb2.Binlog.FromString(p).prewrite_value).mutations) > 2 for p in written.payloads
    )
    assert sum(binlog_pb2.Binlog.FromString(p).tp == binlog_pb2.Rollback for p in written.payloads) > 5


def test_every_kind_of_ddl_comes_about(ran):
    texts = [binlog.ddl_query for p in ran[1].payloads if (binlog := binlog_pb2.Binlog.FromString(p)).ddl_job_id]
    for words in ("CREATE TABLE", "DROP TABLE", "TRUNCATE", "RENAME TABLE", "ADD COLUMN", "DROP COLUMN", "MODIFY COLUMN"):
        assert any(words.encode() in text for text in texts), words
    assert ran[3].done == 50


def test_unique_keys_are_unique(ran):
    upstream = ran[0]
    for table, column in (("demo.account", "email"), ("demo.ticket", "code"), ("demo.ticket", "id"), ("demo.word", "word")):
        values = [row[column] for row in upstream.rows(table).values()]
        assert len(values) == len(set(values)), table


def test_counts_are_of_what_was_committed(ran):
    _, written, sessions, _ = ran
    commits = [b for p in written.payloads if (b := binlog_pb2.Binlog.FromString(p)).tp == binlog_pb2.Commit and not b.ddl_job_id]
    assert sum(session.transactions for session in sessions) == len(commits)
    assert max(session.commit_ts for session in sessions) == max(commit.commit_ts for commit in commits)
    assert sum(session.changes for session in sessions) >= len(commits)


def test_a_session_goes_on_after_somebody_else_has_removed_rows() -> None:
    upstream, _, (session,), _ = run(3, rounds=20, sessions=1)
    gone = upstream.rows("demo.ticket").keys()
    txn = upstream.begin()
    for handle in gone:
        txn.delete("demo.ticket", handle)
    txn.commit()
    session.removed("demo.ticket", set(gone))
    for _ in range(200):
        session.transaction()
    assert upstream.rows("demo.ticket") and gone.isdisjoint(upstream.rows("demo.ticket"))


@pytest.mark.parametrize("kind", EVERY_TYPE)
def test_values_fit_their_columns_and_have_a_comparable_text(kind):
    info = parsed(table_json(Table("t", (Column("c", kind),)), 1))
    chance = random.Random(3)
    values = [value_for(info.columns[0], chance) for _ in range(200)]
    assert None in values
    for value in values:
        assert value is None or encoder_of(info.columns[0])(value)
        text = comparable(info.columns[0], value)
        assert (text is None) == (value is None)


def test_every_type_of_a_column_is_written():
    written = {parsed(table_json(Table("t", (Column("c", kind),)), 1)).columns[0].tp for kind in EVERY_TYPE}
    left_out = {ColumnType.UNSPECIFIED, ColumnType.NULL, ColumnType.NEWDATE, ColumnType.VAR_STRING, ColumnType.GEOMETRY}
    assert set(ColumnType) - written == left_out, "no column of a TiDB has these"


def test_texts_are_those_that_a_server_shows():
    info = parsed(table_json(Table("t", tuple(Column(f"c{i}", k) for i, k in enumerate(("varbinary(4)", "double", "json", "int")))), 1))
    binary, double, json_, number = info.columns
    assert [form_of(c) for c in info.columns] == ["hex", "text", "json", "text"]
    assert comparable(binary, b"\x00\xab") == "00AB"
    assert comparable(double, 12.0) == "12"
    assert comparable(double, -0.125) == "-0.125"
    assert comparable(json_, {"b": 1, "a": [True]}) == '{"a": [true], "b": 1}'
    assert comparable(number, -7) == "-7"
