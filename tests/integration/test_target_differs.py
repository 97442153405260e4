"""Tables at the target that are not the upstream's, on a real MariaDB: fewer columns, no table, DDLs that are not synced, strict servers."""

import contextlib
import decimal
import logging
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.ddl_jobs import JobReader
from pyspark_tidb_binlog.schemas.errors import ApplyError, FindingError
from pyspark_tidb_binlog.schemas.findings import FindingKind
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.engine.batch_report import StageClock, Written
from pyspark_tidb_binlog.sinks.engine.choice import decided
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlEvent, DdlStep, RowsStep, plan_steps
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import remarkable
from pyspark_tidb_binlog.sinks.mysql.exactness import inexact
from pyspark_tidb_binlog.sinks.mysql.mysql_sink import MySQLSink
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from pyspark_tidb_binlog.sinks.mysql.state_table import SafeBounds
from pyspark_tidb_binlog.sinks.mysql.structure import TargetTable, read_tables
from pyspark_tidb_binlog.sinks.mysql.target_fit import as_found
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from tests.support.ddl_jobs import INT, VARCHAR, column, index, job, table, told
from tests.support.ddl_target import Died, committed, deadly
from tests.support.plan_samples import column as plain_column
from tests.support.plan_samples import row_event
from tests.support.plan_samples import table as table_of
from tests.support.plan_samples import text as plain_text
from tests.support.private_mysql import MYSQLD

pytestmark = pytest.mark.mysql

SCHEMA = "differs_marks"
ENUM = {**VARCHAR, "Tp": 247, "Elems": ["x", "y", "z"]}
ID, V, E = column(1, "id", {**INT, "Flag": 4099}), column(2, "v", INT), column(3, "e", ENUM)
UNIQUE = [index(1, "v", ("v", 1), unique=True)]
A, NAMELESS = column(1, "a", {**VARCHAR, "Flen": 30}), "CREATE TABLE `c` (`a` VARCHAR(30) UNIQUE)"
HISTORY = told(
    (3, table(10, "t", [ID, V, E], index_info=UNIQUE), "CREATE TABLE `t` (`id` INT PRIMARY KEY, `v` INT UNIQUE, `e` ENUM('x','y','z'))"),
    (5, table(10, "t", [ID, V, E, column(4, "w", INT)], index_info=UNIQUE), "ALTER TABLE `t` ADD COLUMN `w` INT"),
    (3, table(11, "u", [ID, V]), "CREATE TABLE `u` (`id` INT PRIMARY KEY, `v` INT)"),
    (3, table(12, "c", [A], index_info=[index(1, "a", ("a", 0), unique=True)], pk_is_handle=False), NAMELESS),
)
WHOLE = "id INT PRIMARY KEY, v INT UNIQUE, e ENUM('x','y','z'), w INT"
BEGIN = 100


Change = tuple[dict[int, Any] | None, dict[int, Any]]


class Target:
    """One target, and the lives of the Drainer that writes to it."""

    def __init__(self, server: PrivateMariaDB, session: Session) -> None:
        self.server, self.session = server, session
        self.sink: MySQLSink | None = None
        self.seq = 0

    def life(self, *, by_row: bool = False, version: int = 3, **settings: Any) -> MySQLSink:
        self.close()
        apply = ApplyConfig(checkpoint_schema=SCHEMA, net_change=not by_row, worker_count=2, **settings)
        self.sink = MySQLSink(DrainerConfig(target=self.server.target(), apply=apply), 1)
        self.opened = self.sink.open(lambda target, ts: BEGIN if ts is None else ts, lambda: HISTORY)
        self.version = version
        return self.sink

    def make(self, columns: str = WHOLE, *more: str) -> None:
        """The table ``t`` as a person has made it, and what else a person executes."""
        committed(self.session, f"CREATE TABLE d.t ({columns})", *more)

    def close(self) -> None:
        if self.sink is not None:
            self.sink.close()
        self.sink = None

    def write(self, *changes: Change, table_id: int = 10) -> Written:
        """(old, new) rows by column id as one step of ten."""
        assert self.sink is not None
        after_ts = self.sink.commit_ts
        at = HISTORY.table_at(table_id, self.version)
        assert at is not None
        numbered = enumerate(changes)
        rows = [row_event(at, after_ts + 5, seq, old, new, None if old else seq + 1, self.version) for seq, (old, new) in numbered]
        step = RowsStep(after_ts, after_ts + 10, len(rows), {table_id: at}, applied=AppliedJobs(self.version))
        return self.sink.apply(pa.Table.from_pylist(rows, schema=ROW_EVENT), step, StageClock())

    def ddl(self, job_id: int) -> None:
        assert self.sink is not None
        one = HISTORY.jobs[job_id]
        event = DdlEvent(self.sink.commit_ts + 10, job_id, one.query, 5)
        steps = plan_steps((self.sink.commit_ts, event.commit_ts), [event], (), HISTORY, AppliedJobs(job_id - 1))
        (step,) = (s for s in steps if isinstance(s, DdlStep))
        self.sink.apply_ddl(decided(step, HISTORY, Selection.of(ApplyConfig())), HISTORY, {})
        self.version = job_id

    def rows(self, columns: str, table: str = "t") -> list[tuple[Any, ...]]:
        found = self.session.query(f"SELECT {columns} FROM d.{table} ORDER BY 1")
        self.session.commit()
        return found


@pytest.fixture
def target(mariadb: PrivateMariaDB) -> Iterator[Target]:
    with connect(mariadb.target(), ApplyConfig(lease_timeout=3600.0)) as session:
        session.execute("CREATE DATABASE d CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        made = Target(mariadb, session)
        yield made
        made.close()
        session.rollback()
        for name in ("d", SCHEMA):
            session.execute(f"DROP DATABASE IF EXISTS {name}")


NEW = (None, {1: 1, 2: 10, 3: 2, 4: 7})
by_row = pytest.mark.parametrize("by_row", [False, True])


# Fewer columns.


@pytest.mark.shows("syncer.to.sync-mode")
@by_row
def test_columns_that_the_target_lacks_are_left_out_with_sync_mode_2(
    target: Target, by_row: bool, caplog: pytest.LogCaptureFixture
) -> None:
    target.make("id INT PRIMARY KEY, own VARCHAR(9) DEFAULT 'ours', w INT")
    target.life(by_row=by_row, sync_mode=2, on_finding="stop")
    assert target.write(NEW, (None, {1: 2, 2: 20, 3: 1, 4: 8})).findings == ()
    committed(target.session, "UPDATE d.t SET own = 'mine'")
    target.write(({1: 1, 2: 10, 3: 2, 4: 7}, {1: 1, 2: 11, 3: 3, 4: 9}))
    assert target.rows("id, own, w") == [(1, "mine", 9), (2, "mine", 8)]
    assert caplog.text.count("the target has no column v, e; rows are written without it from now on (syncer.to.sync-mode = 2)") == 1


KEYLESS = WHOLE.replace("PRIMARY KEY", "NOT NULL")
COLUMN_LESS = r"`d`.`t`, commit_ts 105 .*it has no column v, .*sync-mode = 2.*ignore-txn-commit-ts = \[105\]"
MENDED = [
    (False, 1, WHOLE.replace("v INT UNIQUE, ", ""), "", COLUMN_LESS, "ADD COLUMN v INT UNIQUE"),
    (True, 1, WHOLE.replace("v INT UNIQUE, ", ""), "", COLUMN_LESS, "ADD COLUMN v INT UNIQUE"),
    *((False, mode, KEYLESS, "", r"ALTER TABLE `d`.`t` ADD PRIMARY KEY \(`id`\), and start again", "ADD PRIMARY KEY (id), DROP KEY v") for mode in (1, 2)),
    *(
        pytest.param(by_row, 1, WHOLE, engine, f"in engine {engine}, which has no transactions.*ALTER TABLE `d`.`t` ENGINE = InnoDB", "ENGINE = InnoDB",
                     marks=pytest.mark.mariadb if engine == "Aria" else ())
        for by_row in (False, True) for engine in ("MyISAM", "Aria")
    ),
]  # fmt: skip


@pytest.mark.shows("syncer.to.sync-mode")
@pytest.mark.parametrize(("by_row", "sync_mode", "columns", "engine", "words", "mend"), MENDED)
def test_the_error_says_what_is_wrong_with_which_table_and_what_to_do(
    target: Target, by_row: bool, sync_mode: int, columns: str, engine: str, words: str, mend: str
) -> None:
    """Without transactions a second look at a doubtful statement, or a retry, would write its rows twice: ROLLBACK leaves the first ones there."""
    target.make(columns, f"ALTER TABLE d.t ENGINE = {engine or 'InnoDB'}")
    sink = target.life(by_row=by_row, sync_mode=sync_mode)
    with pytest.raises(ApplyError, match=words):
        target.write(NEW)
    assert sink.commit_ts == BEGIN and target.rows("id") == []
    committed(target.session, f"ALTER TABLE d.t {mend}")
    assert target.write(NEW).findings == ()
    assert target.write(({1: 1, 2: 10, 3: 2, 4: 7}, {1: 1, 2: 10, 3: 2, 4: 8})).findings == ()
    assert target.rows("id, v, w") == [(1, 10, 8)]


STORED = column(2, "g", INT, generated_expr_string="length(`a`)", generated_stored=True)


@by_row
def test_a_stored_column_that_the_target_cannot_compute_gets_the_upstream_s_values(
    target: Target, monkeypatch: pytest.MonkeyPatch, by_row: bool
) -> None:
    """MariaDB 10.11 refuses it over a CHAR, whose blanks depend on the session."""
    info = table(13, "s", [ID, STORED, column(3, "a", {**VARCHAR, "Tp": 254})], index_info=[index(1, "g", ("g", 1))])
    text = "CREATE TABLE `s` (`id` INT PRIMARY KEY, `g` INT GENERATED ALWAYS AS (LENGTH(`a`)) STORED, `a` CHAR(20), KEY `g` (`g`))"
    monkeypatch.setattr(sys.modules[__name__], "HISTORY", HISTORY.merged(JobReader().read([job(6, 3, info, query=text)])))
    target.life(by_row=by_row, version=5, on_finding="stop")
    target.ddl(6)
    (said,) = remarkable(target.session, SCHEMA)[-1].losses
    assert "d.s: column g is not computed by the target" in said
    assert target.write((None, {1: 1, 2: 7, 3: "x"}), (None, {1: 2, 3: None}), table_id=13).findings == ()
    target.write(({1: 1, 2: 7, 3: "x"}, {1: 1, 2: 9, 3: "y"}), table_id=13)
    assert target.rows("id, g, a", "s") == [(1, 9, "y"), (2, None, None)]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("nr INT, v INT", "it lacks column id of the primary key that identifies rows"),
        ("id INT PRIMARY KEY, v INT, e ENUM('y','x'), w INT", "words of e differ from the upstream's"),
        ("id INT PRIMARY KEY, v INT, e VARCHAR(9), w INT", "words of e differ from the upstream's"),
    ],
)
@pytest.mark.parametrize("sync_mode", [1, 2])
def test_what_cannot_be_written_right_is_refused_in_either_sync_mode(target: Target, columns: str, words: str, sync_mode: int) -> None:
    target.make(columns)
    target.life(sync_mode=sync_mode)
    with pytest.raises(ApplyError, match=words):
        target.write(NEW)


def test_words_that_servers_show_otherwise_are_the_same_ones(target: Target) -> None:
    """information_schema has no characters beyond 16 bits, and may show a backslash twice."""
    words = ("a\\b", "it's", "\U0001f600", "caf\u00e9, (x)", "")
    at = table_of([replace(plain_column("e", ColumnType.ENUM), elems=words)])
    literals = ", ".join("'" + w.replace("\\", "\\\\").replace("'", "''") + "'" for w in words)
    target.session.execute(f"CREATE TABLE d.t (e ENUM({literals}))")
    found = as_found(at, read_tables(target.session, [("d", "t")])["d", "t"], partial=False)
    assert found is at, found


def test_in_safe_mode_the_words_of_a_later_version_say_that_a_tables_rows_are_there(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A MODIFY COLUMN of the open span was executed: 1 is another word now, and the rows before it hold the right one."""
    other = column(5, "e", {**VARCHAR, "Tp": 247, "Elems": ["z", "x", "y"]})
    changed = job(5, 12, table(10, "t", [ID, V, other], index_info=UNIQUE), query="ALTER TABLE `t` MODIFY `e` ENUM('z','x','y')")
    monkeypatch.setattr(sys.modules[__name__], "HISTORY", HISTORY.merged(JobReader().read([changed])))
    target.make("id INT PRIMARY KEY, v INT UNIQUE, e ENUM('z','x','y')", "INSERT INTO d.t VALUES (1, 10, 'x')")
    sink = target.life(version=2)
    sink._safe.begin(SafeBounds(BEGIN, BEGIN + 1000), "a crash")
    target.write((None, {1: 1, 2: 10, 3: 1}))
    assert target.rows("id, e") == [(1, "x")]


def test_a_table_without_the_key_of_the_upstream_is_changed_row_by_row(target: Target) -> None:
    """An UPDATE finds its row by the columns."""
    target.make(KEYLESS)
    target.life(by_row=True)
    assert target.write(NEW).findings == ()
    assert target.write(({1: 1, 2: 10, 3: 2, 4: 7}, {1: 1, 2: 10, 3: 2, 4: 8})).findings == ()
    assert target.rows("id, v, w") == [(1, 10, 8)]


@by_row
@pytest.mark.parametrize("key", ["id, w", "w, id"])
def test_a_key_over_more_columns_as_a_partitioned_target_has_it(target: Target, by_row: bool, key: str) -> None:
    """The column that only the target's key has changes, too."""
    target.make(
        f"id INT, v INT, e ENUM('x','y','z'), w INT, PRIMARY KEY ({key}), UNIQUE (v, w)",
        "ALTER TABLE d.t PARTITION BY HASH (w) PARTITIONS 3",
    )
    target.life(by_row=by_row)
    assert target.write(NEW).findings == ()
    assert target.write(({1: 1, 2: 10, 3: 2, 4: 7}, {1: 1, 2: 10, 3: 2, 4: 8})).findings == ()
    assert target.write(({1: 1, 2: 10, 3: 2, 4: 8}, {1: 1, 2: 11, 3: 2, 4: 8})).findings == ()
    assert target.rows("id, v, w") == [(1, 11, 8)]


@by_row
@pytest.mark.parametrize("missing", [False, True])
def test_a_unique_key_of_the_targets_own_is_named_where_it_removes_a_row(
    target: Target, by_row: bool, missing: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Upstream two rows have the same w. A swap of two values is nothing to it."""
    target.make(f"{WHOLE} UNIQUE")
    target.life(by_row=by_row)
    one, two = {1: 1, 2: 10, 3: 2, 4: 7}, {1: 2, 2: 20, 3: 2, 4: 8}
    assert target.write((None, one), (None, two)).findings == ()
    if missing:
        committed(target.session, "DELETE FROM d.t WHERE id = 2")
    removed = "another row of the target was removed, because it had the same value of a unique key that the upstream does not have (w)"
    assert any(removed in f.words for f in target.write((two, {**two, 4: 7})).findings)
    assert target.rows("id, v, w") == [(2, 20, 7)]
    assert caplog.text.count("the upstream does not have the target's unique key w") == 1


@by_row
def test_a_key_under_another_collation_is_named_before_and_where_it_removes_a_row(
    target: Target, by_row: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A real Drainer has sent a text without a collation, which is utf8mb4_bin upstream, to a server with another default."""
    committed(target.session, "ALTER DATABASE d COLLATE utf8mb4_general_ci", "USE d", NAMELESS)
    target.life(by_row=by_row, version=5, upstream_new_collations="true", log_row_data=True)
    before, met = target.write((None, {1: "Q1"}), (None, {1: "q1"}), table_id=12).findings
    assert (before.kind, met.kind, target.rows("a", "c")) == (FindingKind.VALUE, FindingKind.ROWS, [("q1",)])
    mend = "ALTER TABLE `d`.`c` MODIFY `a` VARCHAR(30) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL"
    for finding in (before, met):
        assert (
            finding.table == "`d`.`c`" and "a (utf8mb4_general_ci there, utf8mb4_bin upstream)" in finding.words and mend in finding.words
        )
    assert "already existed" in met.words or "another row has the key" in met.words
    assert before.words in caplog.text and met.words.endswith(("for key 'a'", "for key 'c.a'"))
    target.session.execute(mend)
    target.life(by_row=by_row, version=5, upstream_new_collations="true", on_finding="stop")
    assert target.write((None, {1: "Q1"}), table_id=12).findings == ()
    assert target.rows("a", "c") == [("Q1",), ("q1",)]


@by_row
def test_a_column_that_is_dropped_or_added_by_hand_meanwhile(target: Target, by_row: bool) -> None:
    """The table is known from the first step; the refused statement makes the sink read it again."""
    target.make()
    target.life(by_row=by_row, sync_mode=2, on_finding="stop")
    target.write(NEW)
    target.session.execute("ALTER TABLE d.t DROP COLUMN w")
    assert target.write((None, {1: 2, 2: 20, 3: 1, 4: 8})).findings == ()
    assert target.rows("id, v") == [(1, 10), (2, 20)]
    target.session.execute("ALTER TABLE d.t ADD COLUMN must INT NOT NULL")
    assert target.write((None, {1: 3, 2: 30, 3: 1, 4: 8})).findings == ()
    assert target.rows("id, v, must") == [(1, 10, 0), (2, 20, 0), (3, 30, 0)]


# Columns that change values, and of which the server does not warn.

KINDS: dict[str, tuple[ColumnInfo, tuple[str, ...]]] = {
    "BIGINT": (plain_column("v"), ("9007199254740993", "7", "-1")),
    "INT": (plain_column("v", ColumnType.INT), ("2147483647", "-2147483648")),
    "SMALLINT": (plain_column("v", ColumnType.SMALLINT), ("32767", "-32768")),
    "YEAR": (plain_column("v", ColumnType.YEAR), ("2020", "1999")),
    "DECIMAL(10,4)": (plain_column("v", ColumnType.DECIMAL, flen=10, decimal=4), ("1.2345", "123456.7891")),
    "DECIMAL(9,0)": (plain_column("v", ColumnType.DECIMAL, flen=9), ("123456789",)),
    "DOUBLE": (plain_column("v", ColumnType.DOUBLE, flen=22, decimal=-1), ("0.1234567890123", "0.5", "1e-7")),
    "FLOAT": (plain_column("v", ColumnType.FLOAT, flen=12, decimal=-1), ("0.5", "0.10000000149011612")),
    "DATETIME(6)": (plain_column("v", ColumnType.DATETIME, decimal=6), ("'2020-01-01 10:00:00.654321'", "'2020-01-01 00:00:00.000001'")),
    "DATETIME": (plain_column("v", ColumnType.DATETIME), ("'2020-01-01 10:00:00'",)),
    "TIMESTAMP(3)": (plain_column("v", ColumnType.TIMESTAMP, decimal=3), ("'2020-01-01 10:00:00.654'",)),
    "DATE": (plain_column("v", ColumnType.DATE), ("'2020-01-02'",)),
    "TIME(3)": (plain_column("v", ColumnType.TIME, decimal=3), ("'10:11:12.345'",)),
    "VARCHAR(20)": (replace(plain_text("v"), flen=20), ("'abc  '", "'007'", "'2020-1-1'", "'1.50'", "''")),
    "CHAR(5)": (replace(plain_text("v"), tp=ColumnType.STRING, flen=5), ("'abc'", "'007'", "'1.50'")),
    "VARBINARY(20)": (plain_column("v", ColumnType.VARCHAR, flen=20), ("_binary'ab '", "_binary'7'")),
    "BINARY(4)": (plain_column("v", ColumnType.STRING, flen=4), ("_binary'abcd'",)),
    "JSON": (plain_column("v", ColumnType.JSON, charset="utf8mb4"), ("'{\"a\": 1}'", "'7'")),
}
THERE = (
    "TINYINT(1)|SMALLINT|INT|INT UNSIGNED|BIGINT|DECIMAL(10,0)|DECIMAL(30,2)|DECIMAL(30,10)|FLOAT|DOUBLE|DOUBLE(20,2)|"
    "DATE|DATETIME|DATETIME(3)|DATETIME(6)|TIMESTAMP|TIMESTAMP(6)|TIME|TIME(6)|YEAR|CHAR(30)|VARCHAR(3)|VARCHAR(60)|"
    "TEXT|LONGTEXT|JSON|BINARY(30)|VARBINARY(60)|BLOB|VARCHAR(60) CHARACTER SET latin1|BIT(64)"
).split("|")


def as_read(kind: str, value: Any) -> Any:
    """A value as the two tables must agree in it: numbers by their value, times without zeros at their ends."""
    if value is None:
        return None
    text = value.decode("latin1") if isinstance(value, bytes) else str(value)
    if kind.startswith(("BIGINT", "INT", "SMALLINT", "YEAR", "DECIMAL", "DOUBLE", "FLOAT")):
        with contextlib.suppress(decimal.InvalidOperation):
            return decimal.Decimal(text)
    if kind.startswith(("DATE", "TIME")):
        text = re.sub(r"\.?0*$", "", text) if "." in text else text
        return text.removesuffix(" 00:00:00") if kind == "DATE" else text
    return text


def test_no_column_changes_a_value_in_silence(target: Target) -> None:
    """Every type as every other one: a value that is read otherwise has a warning, or its column is said to change values."""
    query, answer = target.session.query, target.session.answer
    columns = ", ".join(f"v{n} {kind} NULL" for n, kind in enumerate(THERE))
    target.session.execute(f"CREATE TABLE d.t ({columns})")
    there = read_tables(target.session, [("d", "t")])["d", "t"].columns
    for kind, (column_, values) in KINDS.items():
        at = table_of([column_])
        target.session.execute("DROP TABLE IF EXISTS d.own")
        target.session.execute(f"CREATE TABLE d.own (v {kind} NULL)")
        assert inexact(at, read_tables(target.session, [("d", "own")])["d", "own"]) == ()
        for value in values:
            target.session.execute("DELETE FROM d.own")
            assert answer(f"INSERT INTO d.own VALUES ({value})".encode()).warnings == ()
            wanted = as_read(kind, query("SELECT v + 0e0 FROM d.own" if kind == "FLOAT" else "SELECT CAST(v AS BINARY) FROM d.own")[0][0])
            for n, other in enumerate(THERE):
                target.session.execute("DELETE FROM d.t")
                try:
                    answered = answer(f"INSERT INTO d.t (v{n}) VALUES ({value})".encode())
                except ApplyError:
                    continue
                number = kind == "FLOAT" and other.startswith(("FLOAT", "DOUBLE"))
                ((read,),) = query(f"SELECT v{n} + 0e0 FROM d.t" if number else f"SELECT CAST(v{n} AS BINARY) FROM d.t")
                if other.startswith("BIT") and not kind.startswith("BIT"):
                    read = b"%d" % int.from_bytes(read, "big")
                if not answered.warnings and as_read(kind, read) != wanted:
                    said = inexact(at, TargetTable("d", "t", (replace(there[n], name="v"),), ()))
                    assert said, f"{value} of {kind} became {read!r} in {other}"


@by_row
def test_columns_that_change_values_are_a_finding_once(target: Target, by_row: bool) -> None:
    target.make(WHOLE.replace("w INT", "w YEAR"))
    sink = target.life(by_row=by_row)
    (found,) = target.write(NEW).findings
    assert (found.kind, found.table, found.commit_ts) == (FindingKind.VALUE, "`d`.`t`", 105)
    assert (
        f"column w is {'year' if MYSQLD else 'year(4)'} instead of INT" in found.words
        and "ALTER TABLE `d`.`t` MODIFY `w` INT," in found.words
    )
    assert target.write((None, {1: 2, 2: 20, 3: 1, 4: 8})).findings == ()
    target.session.execute("ALTER TABLE d.t MODIFY w TIME")
    sink._tables.forget()
    assert ["w is time" in f.words for f in target.write((None, {1: 3, 2: 30, 3: 1, 4: 9})).findings] == [True]
    target.session.execute("ALTER TABLE d.t MODIFY w BIGINT")
    sink = target.life(by_row=by_row, on_finding="stop")
    assert target.write((None, {1: 4, 2: 40, 3: 1, 4: 9})).findings == ()
    target.session.execute("ALTER TABLE d.t MODIFY w YEAR")
    sink._tables.forget()
    with pytest.raises(FindingError, match=r"w is year.*ALTER TABLE.*to continue and record this.*spark.on-finding = record"):
        target.write((None, {1: 5, 2: 50, 3: 1, 4: 9}))
    assert target.rows("id")[-1] == (4,)


@by_row
@pytest.mark.parametrize(("key", "refused"), [("FLOAT", "rounds off digits"), ("DOUBLE", ""), ("BIGINT", ""), ("VARCHAR(30)", "")])
def test_a_key_that_takes_rows_for_others_is_refused(target: Target, by_row: bool, key: str, refused: str) -> None:
    target.make(WHOLE.replace("id INT", f"id {key}"))
    target.life(by_row=by_row, on_finding="stop")
    near = (None, {1: (1 << 24) + 1, 2: 1, 3: 1, 4: 1})
    if not refused:
        assert target.write(near).findings == ()
        return
    with pytest.raises(
        ApplyError, match=rf"its key identifies rows, and column id .*{refused}.*ALTER TABLE `d`.`t` MODIFY `id` INT NOT NULL"
    ):
        target.write(near)
    assert target.rows("id") == []


# No table.


@pytest.mark.shows("known wrong: table that the target lacks")
@by_row
def test_a_table_that_the_target_lacks_is_a_finding_and_the_stream_goes_on(target: Target, by_row: bool) -> None:
    sink = target.life(by_row=by_row, on_finding="stop")
    with pytest.raises(FindingError, match=r"`d`.`t`.*2 rows expected, 0 found.*no such table.*spark.on-finding = record"):
        target.write(NEW, (None, {1: 2, 2: 20, 3: 1, 4: 8}))
    assert sink.commit_ts == BEGIN
    sink = target.life(by_row=by_row, on_finding="record")
    done = target.write(NEW, (None, {1: 2, 2: 20, 3: 1, 4: 8}))
    (found,) = done.findings
    assert (found.kind, found.table, found.wanted, found.found, done.rows) == (FindingKind.ROWS, "`d`.`t`", 2, 0, 0)
    assert "no such table" in found.words and sink.commit_ts == BEGIN + 10
    target.make()
    assert target.write((None, {1: 3, 2: 30, 3: 1, 4: 8})).findings == ()
    target.session.execute("DROP DATABASE d")
    assert [f.wanted for f in target.write((None, {1: 4, 2: 40, 3: 1, 4: 8})).findings] == [1]
    assert sink.commit_ts == BEGIN + 30


def test_a_trigger_that_names_a_missing_table_is_not_a_missing_table(target: Target) -> None:
    target.make(WHOLE, "CREATE TRIGGER d.bad BEFORE INSERT ON d.t FOR EACH ROW INSERT INTO d.nothing VALUES (1)")
    sink = target.life(on_finding="record")
    with pytest.raises(ApplyError, match="nothing"):
        target.write(NEW)
    assert sink.commit_ts == BEGIN


# DDLs that are not synced.


@pytest.mark.shows("syncer.sync-ddl")
@by_row
def test_rows_go_on_by_the_targets_own_tables_where_ddls_are_not_synced(target: Target, by_row: bool) -> None:
    target.make(WHOLE.removesuffix(", w INT"))
    sink = target.life(by_row=by_row, version=2, sync_ddl=False)
    target.write((None, {1: 1, 2: 10, 3: 1}))
    target.ddl(3)
    assert sink.commit_ts == BEGIN + 20
    assert target.write((None, {1: 2, 2: 20, 3: 1, 4: 8})).findings == ()
    assert target.rows("*") == [(1, 10, "x"), (2, 20, "x")]
    # Someone else executes it there.
    target.session.execute("ALTER TABLE d.t ADD COLUMN w INT")
    target.ddl(4)
    assert target.write((None, {1: 3, 2: 30, 3: 1, 4: 9})).findings == ()
    assert target.rows("*")[-1] == (3, 30, "x", 9)
    assert [f.found for f in target.write((None, {1: 1, 2: 1}), table_id=11).findings] == [0]
    recorded = remarkable(target.session, SCHEMA)
    target.session.commit()
    assert [(r.job_id, r.state, r.how, r.executed) for r in recorded] == [
        (3, "not synced", "sync-ddl", ""),
        (4, "not synced", "sync-ddl", ""),
    ]
    # A later life does not execute them, with either setting.
    target.life(by_row=by_row, version=4)
    assert (target.opened.applied.version, target.opened.frozen) == (4, {})
    assert target.write((None, {1: 4, 2: 40, 3: 1, 4: 9})).findings == ()


# Values that a strict server refuses.


@pytest.mark.shows("known wrong: ENUM 0")
@by_row
@pytest.mark.parametrize("mode", ["TRADITIONAL", "STRICT_ALL_TABLES,NO_ZERO_DATE"])
def test_an_enum_0_gets_through_a_strict_sql_mode_which_ddls_obey(
    target: Target, by_row: bool, mode: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark_tidb_binlog.sinks.mysql import target_connection as connections

    monkeypatch.setattr(connections, "_told", set())
    target.make()
    with caplog.at_level(logging.WARNING):
        sink = target.life(by_row=by_row, sql_mode=mode, on_finding="stop")
        assert target.write((None, {1: 1, 2: 1000, 3: 0, 4: 7})).findings == ()
    assert target.rows("id, e + 0") == [(1, 0)]
    assert caplog.text.count("applies to DDLs only; rows are written without it") == 1 and "STRICT_ALL_TABLES" in caplog.text
    with contextlib.closing(sink._connect_for_ddls()) as ddls, pytest.raises(ApplyError, match="Out of range"):
        ddls.execute("ALTER TABLE d.t MODIFY v TINYINT")


# Death and retries while rows change their keys.


@pytest.mark.parametrize("point", ["between-phases", "before-downstream-commit", "after-downstream-commit"])
def test_killed_while_rows_swap_keys(target: Target, point: str) -> None:
    target.make(WHOLE, "INSERT INTO d.t VALUES (1, 10, 'x', 0), (2, 20, 'x', 0)")
    target.life(on_finding="stop")
    swap: list[Change] = [({1: 1, 2: 10, 3: 1, 4: 0}, {1: 1, 2: None, 3: 1, 4: 0}), ({1: 2, 2: 20, 3: 1, 4: 0}, {1: 2, 2: 10, 3: 1, 4: 0})]
    swap.append(({1: 1, 2: None, 3: 1, 4: 0}, {1: 1, 2: 20, 3: 1, 4: 0}))
    with deadly(point), pytest.raises(Died):
        target.write(*swap)
    sink = target.life(on_finding="stop")
    if sink.commit_ts == BEGIN:
        assert target.write(*swap).findings == ()
    assert target.rows("id, v") == [(1, 20), (2, 10)]


def test_a_connection_that_is_killed_amid_updates_of_keys(target: Target) -> None:
    """The transaction is done again on another connection."""
    target.make(
        f"{WHOLE}, own VARCHAR(9) DEFAULT 'none'",
        "CREATE TABLE d.once (n INT AUTO_INCREMENT PRIMARY KEY) ENGINE = MyISAM",
        "INSERT INTO d.t VALUES (1, 10, 'x', 0, 'one'), (2, 20, 'x', 0, 'two')",
        "CREATE TRIGGER d.dies AFTER UPDATE ON d.t FOR EACH ROW BEGIN IF NEW.id = 2 THEN INSERT INTO d.once VALUES (); "
        "IF (SELECT COUNT(*) FROM d.once) = 1 THEN KILL CONNECTION_ID(); END IF; END IF; END",
    )
    sink = target.life(by_row=True, on_finding="stop")
    done = target.write(({1: 1, 2: 10, 3: 1, 4: 0}, {1: 1, 2: 11, 3: 1, 4: 0}), ({1: 2, 2: 20, 3: 1, 4: 0}, {1: 2, 2: 21, 3: 1, 4: 0}))
    assert done.findings == () and target.rows("n", "once")[-1][0] >= 2
    assert target.rows("id, v, own") == [(1, 11, "one"), (2, 21, "two")] and sink.commit_ts == BEGIN + 10


@pytest.mark.parametrize("settings", [{"sync_mode": 2}, {"sync_ddl": False}])
def test_in_safe_mode_a_column_that_the_target_lacks_does_not_say_that_its_rows_are_there(target: Target, settings: dict[str, Any]) -> None:
    """Although a later DDL of the table is known, which another Drainer might have executed."""
    target.make("id INT PRIMARY KEY, e ENUM('x','y','z')")
    sink = target.life(version=2, **settings)
    sink._safe.begin(SafeBounds(BEGIN, BEGIN + 1000), "a crash")
    target.write((None, {1: 1, 2: 10, 3: 2}))
    assert target.rows("id") == [(1,)]
