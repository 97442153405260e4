"""Which keys a snapshot is made of, and what its history then shows: against a schema of a few tables with every kind of change."""

import logging
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.schema_reader import SchemaReader
from pyspark_tidb_binlog.binlog_source.source.mid_history import SYNC_SECONDS
from pyspark_tidb_binlog.jobs.lab.emulator.meta import MetaChange
from pyspark_tidb_binlog.jobs.lab.emulator.mvcc import Mvcc
from pyspark_tidb_binlog.jobs.stream import snapshot_taker
from pyspark_tidb_binlog.jobs.stream.snapshot_taker import SnapshotTaker
from pyspark_tidb_binlog.schemas import meta_keys
from pyspark_tidb_binlog.schemas.ddl_jobs import JobReader, JobType
from pyspark_tidb_binlog.schemas.errors import Corruption, HistoryUnavailable, PumpUnavailable
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.schema_snapshot import SchemaDiff, SnapshotJobs
from tests.support.ddl_jobs import job, partitions, table

BEGUN = int(time.time() * 1000) - 300_000
LONG_AGO = 2 * SYNC_SECONDS * 1000
"""Milliseconds from the tables' making to the ts."""
TS = tso(BEGUN + LONG_AGO)
A, B = 10, 20


def database(schema_id: int, name: str) -> dict[str, Any]:
    return {"id": schema_id, "db_name": {"O": name, "L": name.lower()}, "charset": "utf8mb4", "collate": "utf8mb4_bin", "state": 5}


class FakePorts:
    """Stands for the status ports of one TiDB: what is there now, MVCC, and the jobs."""

    def __init__(self) -> None:
        self.mvcc = Mvcc()
        self.version = 0
        self.shown: dict[int, dict[str, Any]] = {}
        self.content: dict[int, dict[int, dict[str, Any]]] = {}
        self.jobs: list[dict[str, Any]] = []
        self.asked: list[bytes] = []
        self.refusals = 0

    def change(self, at_ms: float, kind: int, schema_id: int, **more: Any) -> int:
        """One schema version that commits ``at_ms`` after the ts."""
        self.version += 1
        change = MetaChange(self.version, int(kind), schema_id, **more)
        commit_ts = TS + int(at_ms * (1 << 18))
        for key, value in change.writes().items():
            self.mvcc.put(key, value, commit_ts - 1, commit_ts)
        for i, info in change.databases.items():
            self.shown.pop(i, None)
            if info is not None:
                self.shown[i] = info
        for (i, table_id), info in change.tables.items():
            self.content.setdefault(i, {}).pop(table_id, None)
            if info is not None:
                self.content[i][table_id] = info
        return self.version

    def databases(self) -> Any:
        return [*self.shown.values(), database(1 << 62, "INFORMATION_SCHEMA")]

    def tables(self, name: str) -> Any:
        if self.refusals:
            self.refusals -= 1
            raise PumpUnavailable("Unknown database")
        (schema_id,) = [i for i, info in self.shown.items() if info["db_name"]["O"] == name]
        return list(self.content.get(schema_id, {}).values())

    def look_up(self, key: bytes) -> Any:
        self.asked.append(key)
        return self.mvcc.look_up(key)

    def job(self, job_id: int) -> Any:
        return next((one for one in self.jobs if one["id"] == job_id), None)


class FakeFeed:
    """Stands for the feed: the jobs of the port."""

    def __init__(self, ports: FakePorts) -> None:
        self._ports = ports

    def snapshot(self) -> SchemaHistory:
        return SchemaHistory.of(JobReader().read(self._ports.jobs))

    refresh = snapshot


@pytest.fixture
def ports() -> FakePorts:
    """Two databases with tables 100 to 103, made long before the ts."""
    made = FakePorts()
    for schema_id, name in ((A, "a"), (B, "b")):
        made.change(-LONG_AGO, JobType.CREATE_SCHEMA, schema_id, databases={schema_id: database(schema_id, name)})
    for table_id in (100, 101, 102, 103):
        info = table(table_id, f"t{table_id}", partition=partitions((900, "p0")) if table_id == 103 else None)
        made.change(-LONG_AGO, JobType.CREATE_TABLE, A, table_id=table_id, tables={(A, table_id): info})
    made.jobs = [job(5000, 3, table(1, "old"), version=2, start_ts=TS - (1 << 40))]
    return made


def taken(ports: FakePorts, safe_point: int | None = 0, patience: float = 0.0) -> SnapshotJobs:
    reader = SchemaReader(lambda: ports, patience, lambda seconds: None)  # type: ignore[arg-type,return-value]
    taker = SnapshotTaker(reader, FakeFeed(ports), None, lambda: safe_point, patience, lambda seconds: None)  # type: ignore[arg-type]
    return taker.at(TS, again=False)


def names(snapshot: SnapshotJobs) -> dict[int, str]:
    history = SchemaHistory.of(snapshot.jobs)
    found = {i: history.table_at(i, snapshot.version) for i in history.tracks}
    return {i: f"{at.schema}.{at.name}" for i, at in found.items() if at is not None}


ALL: Mapping[int, str] = {i: f"a.t{i}" for i in (100, 101, 102, 103)}


def test_what_was_not_changed_is_as_it_is_now(ports: FakePorts) -> None:
    snapshot = taken(ports, safe_point=TS + 1)
    assert names(snapshot) == ALL and (snapshot.ts, snapshot.version, snapshot.newest_job) == (TS, 6, 5000)
    assert [j.version for j in snapshot.jobs] == [1, 2, 3, 6] and all(j.id < 0 for j in snapshot.jobs)
    assert SchemaHistory.of(snapshot.jobs).version_at(TS) == 6
    tables = {meta_keys.table_key(A, i) for i in ALL}
    assert not tables & set(ports.asked) and len(ports.asked) == 2, "the version and its diff: nothing else needs to be asked"


@pytest.mark.shows("syncer.load-schema-snapshot")
def test_every_change_since_is_undone(ports: FakePorts) -> None:
    change = ports.change
    change(1, JobType.RENAME_TABLE, B, table_id=100, old_schema_id=A, tables={(A, 100): None, (B, 100): table(100, "moved")})
    change(2, JobType.TRUNCATE_TABLE, A, table_id=110, old_table_id=101, tables={(A, 101): None, (A, 110): table(110, "t101")})
    change(3, JobType.DROP_TABLE, A, table_id=102, tables={(A, 102): None})
    plain = {(A, 110): None, (A, 900): table(900, "t101"), (A, 103): table(103, "t103", partition=partitions((110, "p0")))}
    change(4, JobType.EXCHANGE_PARTITION, A, table_id=900, old_table_id=110, tables=plain)
    change(5, JobType.TABLE_COMMENT, A, table_id=103, tables={(A, 103): table(103, "t103", comment="new")})
    change(6, JobType.CREATE_TABLE, B, table_id=120, tables={(B, 120): table(120, "fresh")})
    change(7, JobType.CREATE_SCHEMA, 30, databases={30: database(30, "c")})
    snapshot = taken(ports)
    assert names(snapshot) == ALL and snapshot.version == 6
    history = SchemaHistory.of(snapshot.jobs)
    at = history.table_at(103, 6)
    assert at is not None and [p.id for p in at.info.partitions] == [900] and at.info.comment == ""
    assert history.schema_at("c", 6) is None and history.schema_at("b", 6) is not None


def test_exchanged_tables_without_their_diffs_own_ids_are_read_too(ports: FakePorts) -> None:
    """The parent of an EXCHANGE PARTITION stands among the affected options of its diff alone."""
    text = b'{"version":7,"type":42,"schema_id":10,"table_id":900,"old_table_id":100,"affected_options":[{"schema_id":20,"table_id":103}]}'
    diff = SchemaDiff.from_json(text, 9)
    assert (diff.schema_ids, diff.table_ids, diff.version) == ({10, 20}, {900, 100, 103}, 7)
    with pytest.raises(Corruption, match="the changes of a schema version cannot be read"):
        SchemaDiff.from_json(b"[]", 9)


def test_a_dropped_database_comes_back_with_its_tables(ports: FakePorts) -> None:
    gone = {(A, i): None for i in ALL}
    version = ports.change(3, JobType.DROP_SCHEMA, A, databases={A: None}, tables=gone)
    with pytest.raises(HistoryUnavailable, match="wait until the DROP DATABASE has ended"):
        taken(ports)
    ports.jobs.append({**job(5001, 2, version=version), "schema_id": A, "raw_args": [[*ALL, 900]]})
    assert names(taken(ports)) == ALL


def test_rows_of_the_version_before_a_late_change_get_its_default(ports: FakePorts) -> None:
    """The ts lies just after an ADD COLUMN: an UPDATE of the version before lacks the column."""
    ports.change(-50, JobType.ADD_COLUMN, A, table_id=101, tables={(A, 101): table(101, "t101", comment="half")})
    version = ports.change(-10, JobType.ADD_COLUMN, A, table_id=101, tables={(A, 101): table(101, "t101", comment="whole")})
    ports.jobs.append({**job(5001, 5, table(101, "t101"), version=version), "start_ts": TS - (1 << 30)})
    snapshot = taken(ports)
    at = SchemaHistory.of(snapshot.jobs).table_at(101, snapshot.version)
    assert at is not None and at.info.comment == "whole" and at.version == version
    assert at.can_append_default(version - 1) and not at.can_append_default(version)
    ports.jobs[-1] |= {"type": 61}
    ports.jobs[-1]["binlog"]["FinishedTS"] = TS + 1
    at = SchemaHistory.of(taken(ports).jobs).table_at(101, snapshot.version)
    assert at is not None and at.version < 5, "the binlog of a multi-schema change may still follow: its version is no one's yet"


def test_jobs_that_the_snapshot_has_are_found_and_change_nothing(ports: FakePorts) -> None:
    snapshot = taken(ports)
    old, new = JobReader().read([job(5002, 11, table(130, "t101"), version=6), job(5003, 3, table(131, "new"), version=7, schema_id=A)])
    history = SchemaHistory.of([*snapshot.jobs, *map(snapshot.without_effect, (old, new))])
    assert history.job(5002) is not None and history.table_at(130, 9) is None
    assert history.table_at(131, 7) is not None and history.table_at(131, 6) is None
    assert snapshot.continued_by([old]) is False and snapshot.continued_by(JobReader().read(ports.jobs)) is True


def test_what_can_no_longer_be_told_is_an_error(ports: FakePorts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_taker, "time", SimpleNamespace(time=lambda: BEGUN / 1000 + 300))
    info = table(101, "t101", comment="new")
    ports.change(500, JobType.TABLE_COMMENT, A, table_id=101, tables={(A, 101): info})
    assert names(taken(ports, TS)) == ALL, "GC up to the ts has left what is read at it"
    with pytest.raises(HistoryUnavailable, match="TiKV's GC has passed it"):
        taken(ports, TS + 1)
    assert names(taken(ports, None)) == ALL, "nothing so young is collected"
    ports.jobs = [job(5004, 3, table(140, "x"), version=9, start_ts=TS + (600 << 18))]
    with pytest.raises(HistoryUnavailable, match="the DDL history was cut after it: its oldest job, 5004, began at"):
        taken(ports)
    ports.jobs = []
    with pytest.raises(HistoryUnavailable, match="the DDL history was cut after it: it is empty"):
        taken(ports)
    ports.jobs = [job(5000, 3, table(1, "old"), version=2, start_ts=TS - (1 << 40))]
    ports.change(600, JobType.FLASHBACK_CLUSTER, 0)
    with pytest.raises(HistoryUnavailable, match="FLASHBACK CLUSTER"):
        taken(ports)


def test_a_change_that_may_yet_commit_is_waited_for(ports: FakePorts) -> None:
    ports.mvcc.lock(meta_keys.schema_version_key(), TS - 1)
    with pytest.raises(HistoryUnavailable, match="a DDL that began up to ts"):
        taken(ports)
    ports.mvcc.roll_back(meta_keys.schema_version_key(), TS - 1)
    ports.mvcc.lock(meta_keys.schema_version_key(), TS + 1)
    assert names(taken(ports)) == ALL, "one that began later commits later"


def test_a_database_that_goes_while_it_is_listed(ports: FakePorts) -> None:
    ports.refusals = 2
    assert names(taken(ports, patience=30.0)) == ALL


def test_a_ddl_in_progress_at_the_ts_is_told(ports: FakePorts, caplog: pytest.LogCaptureFixture) -> None:
    half = table(101, "t101")
    half["cols"][0] |= {"state": 2}
    ports.change(-5, JobType.DROP_COLUMN, A, table_id=101, tables={(A, 101): half})
    with caplog.at_level(logging.WARNING):
        taken(ports)
    assert "a DDL was in progress on a.t101" in caplog.text


def test_versions_without_a_diff_are_passed_over(ports: FakePorts) -> None:
    """The version of a job whose transaction failed."""
    ports.version += 3
    ports.change(1, JobType.DROP_TABLE, A, table_id=102, tables={(A, 102): None})
    assert names(taken(ports)) == ALL


def test_a_store_without_the_keys_is_an_error() -> None:
    with pytest.raises(HistoryUnavailable, match="no schema version under key 6d"):
        taken(FakePorts())
