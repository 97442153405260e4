"""The published moments of a lake: at which version each mirror is, at one time of the upstream. [deltalake]

    resolved_ts  table_id  database  table   path        version  upto_ts  state     number
    450          104       shop      orders  tables/104  7        450      mirrored  12
    460          104       shop      sold    tables/104  9        460      mirrored  13

The map at T: of each table_id the row with the largest ``number`` among those with ``resolved_ts <= T``. A table without a newer row did not change.
One commit publishes one moment. Its ``commitInfo.tidb_binlog`` is the ``Moment``. ``job`` is set where a table that the ledger has no CREATE TABLE of is
to be loaded: such a job, so that the schema history is complete without the upstream.

Promises: a commit is compare-and-swap, as in ``ledger``. A start commits its epoch, and nothing of an older epoch is published from then on.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Self

import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.schemas.changes.change_rows import commit_time
from pyspark_tidb_binlog.schemas.ddl_jobs import Job
from pyspark_tidb_binlog.schemas.errors import ApplyError, LeaseLost
from pyspark_tidb_binlog.schemas.job_json import job_json, table_json
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo
from pyspark_tidb_binlog.sinks.lake.ledger import APP, at_newest, compare_and_swap, recording_commit, scanned, with_directory

_log = logging.getLogger(__name__)

SNAPSHOTS = pa.schema(
    [
        pa.field("resolved_ts", pa.int64()),
        pa.field("resolved_time", pa.timestamp("us", tz="UTC")),
        pa.field("table_id", pa.int64()),
        pa.field("database", pa.string()),
        pa.field("table", pa.string()),
        pa.field("path", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("upto_ts", pa.int64()),
        pa.field("schema_version", pa.int64()),
        pa.field("info", pa.string()),
        pa.field("state", pa.string()),
        pa.field("why", pa.string()),
        pa.field("number", pa.int64()),
        pa.field("job", pa.string()),
    ]
)
MIRRORED, LOADING, STALE, DROPPED = "mirrored", "loading", "stale", "dropped"
"""LOADING: the table is to be read from the upstream, and has no mirror until then."""
_SETTINGS = {"delta.appendOnly": "true", "delta.dataSkippingStatsColumns": "resolved_ts,table_id,number"}
NO_JOBS: Mapping[int, Job] = MappingProxyType({})
_MOST_FILES = 200
_RACES = 20


@dataclass(frozen=True, slots=True)
class MirrorState:
    """A table of the upstream, and its mirror."""

    table_id: int
    database: str
    table: str
    path: str = ""
    """Of the mirror in the lake; empty: there is none."""
    version: int | None = None
    upto_ts: int = 0
    """The mirror holds all of its table's changes up to and including it."""
    schema_version: int = 0
    info: TableInfo | None = None
    state: str = MIRRORED
    why: str | None = None
    """Why it is stale."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What a commit records."""

    epoch: int = 0
    resolved_ts: int = 0
    jobs: tuple[int, ...] = ()
    """The DDL jobs at ``resolved_ts`` that are in the mirrors: an early one has the commit_ts of a transaction before it."""
    number: int = 0
    """Of the last row."""

    def to_json(self) -> str:
        """As it is kept."""
        return json.dumps({"layout": 1, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of ``to_json``."""
        found = json.loads(text)
        if found.pop("layout", None) != 1:
            raise ValueError("its layout is not 1")
        return cls(**found | {"jobs": tuple(found["jobs"])})


class Snapshots:
    """A handle on the table. One thread at a time."""

    def __init__(self, lake: str) -> None:
        """Nothing is read before ``take``."""
        self.uri = f"{lake.rstrip('/')}/snapshots"
        self._table: DeltaTable | None = None
        self.moment = Moment()
        """The newest one."""

    def take(self, epoch: int) -> None:
        """Fence every older epoch.

        Raises:
            LeaseLost: a newer one has begun.
        """
        try:
            self._table = DeltaTable(with_directory(self.uri))
        except TableNotFoundError:
            try:
                first = Moment(epoch)
                self._table = DeltaTable.create(
                    self.uri, SNAPSHOTS, mode="error", configuration=_SETTINGS, commit_properties=_commit_of(first)
                )
            except DeltaError:
                self._table = DeltaTable(self.uri)
        for attempt in range(_RACES):
            self.moment = self._newest(self._table)
            try:
                self._commit(replace(self.moment, epoch=epoch), [])
            except ApplyError as error:
                # One of an older epoch may have published meanwhile.
                if isinstance(error, LeaseLost) or attempt == _RACES - 1:
                    raise
            else:
                return

    def load(self) -> Moment | None:
        """The newest moment, for a reader; None: there is no table.

        Raises:
            ApplyError: it is not a lake's.
        """
        try:
            return self._newest(DeltaTable(self.uri))
        except TableNotFoundError:
            return None

    def tables(self) -> dict[int, MirrorState]:
        """The newest map: by table id."""
        assert self._table is not None
        rows = pa.Table.from_batches(self._table.to_pyarrow_dataset(schema=SNAPSHOTS).to_batches(), SNAPSHOTS).sort_by("number")
        last = {table_id: place for place, table_id in enumerate(rows["table_id"].to_pylist())}
        return {row["table_id"]: _state_of(row) for row in rows.take(pa.array(list(last.values()), pa.int64())).to_pylist()}

    def paths(self) -> set[str]:
        """Every mirror that was ever published."""
        found = scanned(self.uri, ("path",), "path <> ''")
        return set(found.read_all()["path"].to_pylist()) if found is not None else set()

    def definitions(self) -> list[Job]:
        """The jobs that ``publish`` was given as ``defined``."""
        found = scanned(self.uri, ("job",), "job IS NOT NULL")
        return [Job.from_json(json.loads(text)) for text in found.read_all()["job"].to_pylist()] if found is not None else []

    def publish(
        self, resolved_ts: int, jobs: Iterable[int], rows: list[tuple[int, MirrorState]], defined: Mapping[int, Job] = NO_JOBS
    ) -> None:
        """One moment: what tables became, in order, each at a ts. ``defined``: by table id, the jobs that make tables of ``rows``.

        Raises:
            LeaseLost: another writer has begun.
        """
        failpoints.point("before-publication")
        fresh = replace(self.moment, resolved_ts=resolved_ts, jobs=tuple(jobs), number=self.moment.number + len(rows))
        self._commit(fresh, rows, defined)
        failpoints.point("after-publication")

    def _commit(self, fresh: Moment, rows: list[tuple[int, MirrorState]], defined: Mapping[int, Job] = NO_JOBS) -> None:
        data = _rows_of(rows, fresh.number - len(rows) + 1, defined)
        for _ in range(_RACES):
            assert self._table is not None
            if self.moment.epoch > fresh.epoch:
                raise LeaseLost(f"another Drainer publishes to {self.uri}: this one writes nothing more")
            version = self._table.version()
            try:
                write_deltalake(self._table, data, mode="append", commit_properties=_commit_of(fresh))
                self.moment = fresh
            except (DeltaError, OSError) as error:
                known = self.moment
                self.moment = self._newest(self._table)
                if self.moment == fresh and self._table.version() > version:
                    return
                if self.moment.epoch <= fresh.epoch and (self.moment != known or self._table.version() == version):
                    raise ApplyError(f"cannot publish to {self.uri}: {error}") from error
                continue
            if self._table.get_add_actions().num_rows > _MOST_FILES:
                self._table.optimize.compact(commit_properties=_commit_of(fresh))
            return
        raise ApplyError(f"other programs have committed to {self.uri} {_RACES} times while a moment was to be published; end them")

    def _newest(self, table: DeltaTable) -> Moment:
        """That of the newest version, to which ``table`` goes."""
        commit = at_newest(table, recording_commit)
        if commit is None:
            raise ApplyError(
                f"{self.uri} is a Delta table whose log holds no record of moments: it is not a lake's, or its log was removed"
            )
        return Moment.from_json(commit[APP])


def _commit_of(moment: Moment) -> CommitProperties:
    return compare_and_swap(moment.to_json(), moment.resolved_ts)


def _rows_of(rows: list[tuple[int, MirrorState]], first: int, defined: Mapping[int, Job]) -> pa.Table:
    infos = [_compact(table_json(s.info)) if s.info else None for _, s in rows]
    jobs = [_compact(job_json(defined[s.table_id])) if s.table_id in defined else None for _, s in rows]
    made = {
        "resolved_ts": pa.array([ts for ts, _ in rows], pa.int64()),
        "resolved_time": commit_time(np.array([ts for ts, _ in rows], np.int64)),
        "info": pa.array(infos, pa.string()),
        "job": pa.array(jobs, pa.string()),
        "number": pa.array(range(first, first + len(rows)), pa.int64()),
    }
    arrays = [made[f.name] if f.name in made else pa.array([getattr(s, f.name) for _, s in rows], f.type) for f in SNAPSHOTS]
    return pa.Table.from_arrays(arrays, schema=SNAPSHOTS)


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _state_of(row: dict[str, object]) -> MirrorState:
    info = TableInfo.from_json(json.loads(str(row["info"]))) if row["info"] else None
    names = ("table_id", "database", "table", "path", "version", "upto_ts", "schema_version", "state", "why")
    return MirrorState(**{name: row[name] for name in names}, info=info)  # type: ignore[arg-type]
