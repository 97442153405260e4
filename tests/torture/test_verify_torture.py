"""A thousand short verifications beside random transactions, DDLs of every kind and ``kill -9`` of the applying process, in each way of applying: no difference that is
not there, and each row that is spoiled is found and repaired, and nothing else.

``TIDB_BINLOG_VERIFY_RUNS`` verifications in each way, ``TIDB_BINLOG_TORTURE_SEED`` names another run.
"""

import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql
import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, SourceConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.verify import verification
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_string
from pyspark_tidb_binlog.schemas.errors import NotUsableYet
from pyspark_tidb_binlog.schemas.tableinfo import ColumnType
from pyspark_tidb_binlog.sinks.verify import standing, table_comparison, table_pair
from pyspark_tidb_binlog.sinks.verify import verification as verifying
from pyspark_tidb_binlog.sinks.verify.canonical import Form, canonical
from pyspark_tidb_binlog.sinks.verify.repairing import Repairing
from pyspark_tidb_binlog.sinks.verify.standing import Readers
from pyspark_tidb_binlog.sinks.verify.verification import VerifiedTable
from tests.support.applying_life import Applying, ApplyingLife, applying
from tests.support.emulated_stream import MODES
from tests.support.private_mysql import RealMariaDB
from tests.support.target_rows import rows_of
from tests.support.verify_site import tables_of
from tests.support.versioned_upstream import DATABASES, VersionedHistory, VersionedSnapshots, names_then, tables_then

pytestmark = [pytest.mark.torture, pytest.mark.slow, pytest.mark.spark, pytest.mark.mysql]

SEED = os.environ.get("TIDB_BINLOG_TORTURE_SEED", "1")
RUNS = int(os.environ.get("TIDB_BINLOG_VERIFY_RUNS", "340"))
BATCHES_AHEAD = 100
"""Of a life's begin, which ends before them."""
MARKS = "torture_marks"
Rows = Counter[tuple[bytes | None, ...]]


@pytest.fixture
def source() -> Iterator[PrivateMariaDB]:
    with RealMariaDB() as server:
        yield server


@pytest.fixture(autouse=True)
def versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "upstream_names", names_then)
    monkeypatch.setattr(verifying, "read_tables", tables_then)
    # A MariaDB has JSON as a text, whose equal documents are different texts.
    forms = table_pair.form_of_both
    monkeypatch.setattr(table_pair, "form_of_both", lambda one, other: Form.DOCUMENT if one.kind == "longtext" else forms(one, other))


def with_documents(rows: Rows) -> Rows:
    """A repair writes a document as the upstream writes it."""
    return Counter(tuple(canonical(Form.DOCUMENT, cell) if cell and cell[:1] == b"{" else cell for cell in row) for row in rows.elements())


@dataclass
class Torture:
    """Both sides, and what was done to them."""

    config: DrainerConfig
    history: VersionedHistory
    snapshots: VersionedSnapshots
    target: PrivateMariaDB
    chance: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    spoiled: set[tuple[str, Any]] = field(default_factory=set)
    """Tables and rows that were spoiled while the stream ran."""

    def verified(self, spoil: bool = False) -> dict[str, VerifiedTable]:
        """A short verification; ``spoil``: rows are spoiled as soon as it stands at S."""
        run, _ = verification(self.config, self.snapshots)
        run.pace.size = self.chance.choice((3, 20, 2000))
        with contextlib.closing(run):
            if spoil:
                run.names()
                self.spoil()
            found = {table.name: table for table in tables_of(run)}
        self.counts["verifications"] += 1
        vain = [name for name, table in found.items() if any("in vain" in one.words for one in table.left_out)]
        self.counts["in vain"] += len(vain)
        return {name: table for name, table in found.items() if name not in vain}

    def equal(self, found: dict[str, VerifiedTable]) -> None:
        for table in found.values():
            assert all(one.by_intent for one in table.left_out), (table.name, table.ts, table.left_out)
            if table.tally is not None:
                self.counts["tables"] += 1
                self.counts["rows"] += table.tally.rows
                keys = {(table.name, tuple(one.key.values())) for one in table.tally.listed}
                assert keys <= self.spoiled and not table.tally.unlisted, (table.name, table.ts, table.tally)

    # Beside the stream.

    def beside(self, life: Applying, seconds: float) -> None:
        """Verifications while a life applies, or begins."""
        until, begun = time.monotonic() + 60, False
        while time.monotonic() < until and life.running and self.counts["beside"] < RUNS:
            if not begun and life.batches > 0:
                begun, until = True, time.monotonic() + seconds
            elif not begun:
                time.sleep(0.5)  # Spark starts
            if begun and self.chance.random() < 0.15:
                self.spoil_one()
            try:
                found = self.verified()
            except NotUsableYet as error:
                assert any(words in str(error) for words in ("half applied", "executed before", "under way", "always open")), error
                self.counts["not usable"] += 1
                continue
            self.counts["beside"] += begun
            self.equal(found)
            if begun and any(table.tally and table.tally.differing for table in found.values()) and self.chance.random() < 0.5:
                with contextlib.suppress(NotUsableYet):
                    self.repair(found)
        assert life.running or life.process.returncode == 0, life.out.read_text()[-3000:]

    def spoil_one(self) -> None:
        """One value of one row, outside of its keys."""
        version, table = self.chance.choice(
            [(v, ".".join(name)) for name, v in self.history.states[-1][1].items() if v.info.handle_columns()]
        )
        keys = [c.name for c in version.info.handle_columns()]
        keyed = {c.name for i in version.info.indexes for c in i.columns} | set(keys)
        columns = [c for c in version.info.target_columns() if c.name not in keyed]
        with self.target.connect() as session, session.cursor() as cursor, contextlib.suppress(pymysql.err.MySQLError):
            cursor.execute("SET SESSION sql_mode = '', time_zone = '+00:00', innodb_lock_wait_timeout = 1")
            cursor.execute(f"SELECT {', '.join(keys)} FROM {table} ORDER BY RAND() LIMIT 1")
            for row in cursor.fetchall() if columns else ():
                column, where = self.chance.choice(columns), " AND ".join(f"{key} = %s" for key in keys)
                self.spoiled.add((table, tuple(quote_string(v) if isinstance(v, str) else str(v) for v in row)))
                self.counts["spoils beside"] += cursor.execute(
                    f"UPDATE {table} SET {column.name} = %s WHERE {where}", [0 if column.not_null else None, *row]
                )
            session.commit()

    # While no life runs.

    def dumps(self) -> dict[str, Rows]:
        with self.target.connect() as session, session.cursor() as cursor:
            cursor.execute(
                "SELECT CONCAT(table_schema, '.', table_name) FROM information_schema.tables WHERE table_schema IN %s", [DATABASES]
            )
            return {name: with_documents(rows_of(self.target, name)) for (name,) in cursor.fetchall()}

    def spoil(self) -> None:
        """Some rows, in all ways."""
        tables = [name for name, version in self.history.at(self.ts()).items() if version.rows]
        with self.target.connect() as session, session.cursor() as cursor:
            cursor.execute("SET SESSION sql_mode = '', time_zone = '+00:00'")
            for _ in range(self.chance.choice((1, 2, 5, 20))):
                name = self.chance.choice(tables)
                version, table = self.history.at(self.ts())[name], ".".join(name)
                column = self.chance.choice([c for c in version.info.target_columns() if c.tp != ColumnType.JSON])
                values = ["NULL", "''", f"CONCAT({column.name}, ' ')", f"UPPER({column.name})", f"LEFT({column.name}, 1)", "12345.5", "0"]
                if column.tp not in (ColumnType.FLOAT, ColumnType.DOUBLE):
                    values += [f"{column.name} + 1", f"{column.name} ^ 1", "'2020-02-02 00:00:00'"]
                each = [f"UPDATE {table} SET {column.name} = {value} ORDER BY RAND() LIMIT 1" for value in values]
                each += [f"DELETE FROM {table} ORDER BY RAND() LIMIT 1"] * 3
                each += [f"INSERT INTO {table} SELECT * FROM {table} ORDER BY RAND() LIMIT 1"] * 3
                with contextlib.suppress(pymysql.err.MySQLError):
                    self.counts["spoils"] += cursor.execute(self.chance.choice(each))
            session.commit()

    def ts(self) -> int:
        readers = Readers(self.config, self.history.upstream.cluster_id, self.snapshots, 1)
        with readers.standing() as at:
            return at.at.ts

    def spoils(self) -> None:
        """Spoil rows where the target stands still, find them, and repair them."""
        self.put_right()
        before = self.dumps()
        during = self.chance.random() < 0.3
        if during:
            self.equal(self.verified(spoil=True))
        else:
            self.spoil()
        spoiled, found = self.dumps(), self.verified()
        for name, rows in before.items():
            differing = self.differing(name, rows, spoiled[name])
            table = found[name]
            assert table.tally is not None and table.tally.differing == differing, (name, differing, table)
            self.counts["differences"] += differing
        self.put_right(found)
        after = self.dumps()
        assert after == before, [
            (name, after[name] - before[name], before[name] - after[name]) for name in before if after[name] != before[name]
        ]

    def differing(self, name: str, before: Rows, after: Rows) -> int:
        schema, _, table = name.partition(".")
        info = self.history.at(self.ts())[schema, table].info
        keys = [c.name for c in (info.handle_columns() or (info.unique_keys() or ((),))[0])]
        if not keys:
            return (before - after).total() + (after - before).total()
        with self.target.connect() as session, session.cursor() as cursor:
            cursor.execute(f"SHOW COLUMNS FROM {name}")
            places = [place for place, row in enumerate(cursor.fetchall()) if row[0] in keys]
        return len({tuple(row[place] for place in places) for row in ((before - after) + (after - before))})

    def repair(self, found: dict[str, VerifiedTable]) -> int:
        """What is left."""
        repairing, left = Repairing(Readers(self.config, self.history.upstream.cluster_id, self.snapshots, 1)), 0
        for table in found.values():
            if table.tally is not None and table.tally.differing:
                done = repairing.repair(table)
                self.counts["repaired"] += sum(one.times for one in done.repaired)
                left += len(done.left)
                for one in done.left:
                    assert "Duplicate" in one.why or "DDL ran" in one.why or "locks" in one.why, one
                    self.counts[f"left: {one.why.split(chr(39))[0]}"] += 1
        return left

    def put_right(self, found: dict[str, VerifiedTable] | None = None) -> None:
        """Repair everything; rows that are in each other's way are deleted first."""
        for _ in range(6):
            found = found or self.verified()
            if not any(table.tally and table.tally.differing for table in found.values()):
                self.spoiled.clear()
                return
            if self.repair(found):
                self.delete_all(self.verified())
            found = None
        raise AssertionError(found)

    def delete_all(self, found: dict[str, VerifiedTable]) -> None:
        with self.target.connect() as session, session.cursor() as cursor:
            for table in found.values():
                for one in table.tally.listed if table.tally else ():
                    keys = " AND ".join(f"{name} = {value}" for name, value in one.key.items())
                    if one.kind.name == "CHANGED":
                        cursor.execute(f"DELETE FROM {table.target} WHERE {keys}")
            session.commit()


@pytest.mark.parametrize("mode", MODES)
def test_verifications(
    mode: str, fresh_mariadb: PrivateMariaDB, source: PrivateMariaDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_comparison, "_FEW", 5)
    history = VersionedHistory(f"{SEED} {mode}")
    config = DrainerConfig(
        target=fresh_mariadb.target(),
        apply=ApplyConfig(checkpoint_schema=MARKS, replicate_do_db=DATABASES, lease_timeout=5.0, **MODES[mode]),
        source=SourceConfig(cluster_id=history.upstream.cluster_id),
    )
    torture = Torture(config, history, VersionedSnapshots(source, history), fresh_mariadb, random.Random(f"{SEED} {mode}"))
    file, counts = tmp_path / "history", torture.counts
    history.extend(30)
    since = time.monotonic()
    try:
        while counts["beside"] < RUNS:
            history.extend(max(counts["batches"] + BATCHES_AHEAD - len(history.ends), 0))
            history.written_to(file)
            monkeypatch.setattr(standing, "SETTLE_SECONDS", 3.0)
            with applying(ApplyingLife(config, file), tmp_path) as life:
                counts["lives"] += 1
                if counts["lives"] == 1:
                    while life.running and not life.batches:
                        time.sleep(0.1)
                torture.beside(life, torture.chance.uniform(1, 30))
                counts["kills"] += life.running
                counts["batches"] += life.batches
            monkeypatch.setattr(standing, "SETTLE_SECONDS", 0.5)
            with contextlib.suppress(NotUsableYet):
                for _ in range(3):
                    torture.spoils()
                    counts["cycles"] += 1
        monkeypatch.setattr(standing, "SETTLE_SECONDS", 60.0)
        with applying(ApplyingLife(config, file, 0.0), tmp_path) as life:
            assert life.process.wait(300) == 0, life.out.read_text()[-3000:]
        for _ in range(10):
            torture.spoils()
            counts["cycles"] += 1
        torture.equal(torture.verified())
        assert torture.ts() == history.ends[-1]
    finally:
        print(f"\n{mode}: {time.monotonic() - since:.0f} s, {history.ddls} DDLs, {history.transactions} transactions, {dict(counts)}")
    assert counts["kills"] and counts["differences"] and counts["beside"]
