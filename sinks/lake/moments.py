"""The published moments of a lake: at which version each mirror is, at one time of the upstream. [deltalake]

    resolved_ts  table_id  database  table   path        version  upto_ts  state     number
    450          104       shop      orders  tables/104  7        450      mirrored  12
    460          104       shop      sold    tables/104  9        460      mirrored  13

The map at T: of each table_id the row with the largest ``number`` among those with ``resolved_ts <= T``. A table without a newer row did not change.
One commit publishes one moment. Its ``commitInfo.tidb_binlog`` is the ``Moment``. ``job`` is set where a table that the ledger has no CREATE TABLE of is
to be loaded: such a job, so that the schema history is complete without the upstream. ``upkeep`` removes rows of older moments.

A reader of a moment takes the version of each mirror, and what the ledger has since (``Published``):

    snapshots    resolved_ts 100: orders is version 4 of tables/7, complete up to 100;  130: orders is version 5, up to 130
    at 120       version 4 of tables/7, and the ledger's rows of table 7 in (100, 120]

Promises: a commit is compare-and-swap, as in ``ledger``. A start commits its epoch, and nothing of an older epoch is published from then on. What is read of a
moment depends on what was published up to the moment only. A table that is not readable at the moment is an error with its reason.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, write_deltalake

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.setting import nearest
from pyspark_tidb_binlog.schemas.changes.change_rows import commit_time
from pyspark_tidb_binlog.schemas.changes.table_names import NamedTable
from pyspark_tidb_binlog.schemas.ddl_jobs import Job
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError, LeaseLost
from pyspark_tidb_binlog.schemas.events import as_time, tso
from pyspark_tidb_binlog.schemas.job_json import job_json, table_json
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo
from pyspark_tidb_binlog.sinks.lake import lake_table
from pyspark_tidb_binlog.sinks.lake.lake_table import KEPT_HOURS, RecordedTable, RecordReplaced, scanned

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
_SETTINGS = {
    "delta.dataSkippingStatsColumns": "resolved_ts,table_id,number",
    "delta.deletedFileRetentionDuration": f"interval {KEPT_HOURS} hours",
    # Another program that cleaned the log could remove the newest moment.
    "delta.enableExpiredLogCleanup": "false",
}
NO_JOBS: Mapping[int, Job] = MappingProxyType({})
_MOST_FILES = 200
_AT_ONCE = 10_000
"""Rows that one commit removes."""


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

    def __str__(self) -> str:
        """Its name in the lake."""
        return f"{self.database}.{self.table}"


@dataclass(frozen=True, slots=True)
class TablePlace(MirrorState):
    """A table as published: a row of ``snapshots``, without the definition."""

    resolved_ts: int = 0
    number: int = 0


COLUMNS = tuple(name for name in TablePlace.__dataclass_fields__ if name != "info")
_LEFT = {DROPPED: "was dropped", LOADING: "is not loaded yet; it is to be read from the upstream since"}


@dataclass(frozen=True, slots=True)
class Moment:
    """The record of a commit."""

    epoch: int = 0
    resolved_ts: int = 0
    jobs: tuple[int, ...] = ()
    """The DDL jobs at ``resolved_ts`` that are in the mirrors: an early one has the commit_ts of a transaction before it."""
    number: int = 0
    """Of the last row."""
    kept_ts: int = 0
    """From here on every moment can be read. Of earlier ones, what these need is kept."""

    @property
    def commit(self) -> CommitProperties:
        """The moment as a commit has it."""
        return lake_table.compare_and_swap(json.dumps({"layout": 1, **asdict(self)}, separators=(",", ":")), self.resolved_ts)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of ``commit``."""
        found = json.loads(text)
        if found.pop("layout", None) != 1:
            raise ValueError("its layout is not 1")
        return cls(**found | {"jobs": tuple(found["jobs"])})


class Snapshots(RecordedTable[Moment]):
    """A handle on the table. One thread at a time."""

    def __init__(self, lake: str, retention: float = 0.0) -> None:
        """Nothing is read before ``take``. ``retention``: seconds before the newest moment for which moments are kept, for a writer."""
        self._retention = tso(int(1000 * retention))
        lacks = "no record of moments: it is not a lake's, or its log was removed"
        super().__init__(f"{lake.rstrip('/')}/snapshots", "the table of moments", lacks, Moment.from_json)
        self.moment = Moment()
        """The newest one."""

    def take(self, epoch: int) -> None:
        """Fence every older epoch, of which a writer may have published meanwhile.

        Raises:
            LeaseLost: a newer one has begun.
        """
        self._table = None
        if self.load() is None:
            self.created(SNAPSHOTS, _SETTINGS, Moment(epoch))
        while (before := self._newest()).epoch <= epoch:
            fresh = replace(before, epoch=epoch)
            with suppress(RecordReplaced):
                self.commit_behind(before, fresh, _appends([], 0), "an epoch was to begin")
                self.moment = fresh
                return
        raise self._lost()

    def tables(self) -> dict[int, MirrorState]:
        """The newest map: by table id."""
        numbers = self.rows(["number", "table_id"]).group_by("table_id").aggregate([("number", "max")])["number_max"].combine_chunks()
        rows = self._dataset().to_table(filter=pc.field("number").isin(numbers))
        return {row["table_id"]: _state_of(row) for row in rows.to_pylist()}

    def rows(self, columns: Sequence[str]) -> pa.Table:
        """All rows, in any order."""
        return self._dataset().to_table(columns=list(columns))

    def thin(self, numbers: Sequence[int]) -> None:
        """Remove rows, by their ``number``.

        Raises:
            LeaseLost: another writer has begun.
        """
        for begin in range(0, len(numbers), _AT_ONCE):
            self._commit(self.moment, _removes(numbers[begin : begin + _AT_ONCE]))

    def require_newest(self) -> None:
        """Raises ``LeaseLost`` if another writer has begun."""
        if self._newest().epoch != self.moment.epoch:
            raise self._lost()

    def definitions(self) -> list[Job]:
        """The jobs that ``publish`` was given as ``defined``."""
        found = scanned(self.uri, ("job",), "job IS NOT NULL")
        return [Job.from_json(json.loads(text)) for text in found.read_all()["job"].to_pylist()] if found is not None else []

    def publish(
        self, resolved_ts: int, jobs: Iterable[int], rows: list[tuple[int, MirrorState]], defined: Mapping[int, Job] = NO_JOBS
    ) -> None:
        """Publish one moment: the tables that changed, in order, each at a ts. ``defined``: by table id, the jobs that make tables of ``rows``.

        Raises:
            LeaseLost: another writer has begun.
        """
        failpoints.point("before-publication")
        kept_ts = max(self.moment.kept_ts, resolved_ts - self._retention)
        fresh = replace(self.moment, resolved_ts=resolved_ts, jobs=tuple(jobs), number=self.moment.number + len(rows), kept_ts=kept_ts)
        self._commit(fresh, _appends(rows, fresh.number, defined))
        failpoints.point("after-publication")

    def _commit(self, fresh: Moment, write: "Write") -> None:
        if not lake_table.in_log(self._held, self.version):
            raise ApplyError(f"the log of {self.uri} has no version {self.version} any more: what is published is read again")
        try:
            self.commit_behind(self.moment, fresh, write, "a moment was to be published")
        except RecordReplaced as error:
            self.moment = error.found or self.moment
            raise self._lost() if self.moment.epoch > fresh.epoch else ApplyError(f"cannot publish to {self.uri}: {error}") from error
        self.moment = fresh
        if self._held.get_add_actions().num_rows > _MOST_FILES:
            # Without a record: delta-rs puts a compaction behind whatever others have committed.
            self._held.optimize.compact()

    def _dataset(self) -> Any:
        return self._held.to_pyarrow_dataset(schema=SNAPSHOTS)

    def _lost(self) -> LeaseLost:
        return LeaseLost(f"another Drainer publishes to {self.uri}: this one writes nothing more")


Write = Callable[[DeltaTable, CommitProperties], object]


def _removes(numbers: Sequence[int]) -> Write:
    where = f"number IN ({', '.join(map(str, numbers))})"
    return lambda table, commit: table.delete(where, commit_properties=commit)


def _appends(rows: list[tuple[int, MirrorState]], number: int, defined: Mapping[int, Job] = NO_JOBS) -> Write:
    """Append ``rows``, of which the last one has this number."""
    data = _rows_of(rows, number - len(rows) + 1, defined)
    return lambda table, commit: write_deltalake(table, data, mode="append", commit_properties=commit)


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


class Published:
    """All that was published, in its order."""

    def __init__(self, rows: pa.Table, newest: Moment, begin_ts: int = 0) -> None:
        """``rows``: ``COLUMNS`` of the table ``snapshots``. ``newest``: how far mirrors have followed the ledger. ``begin_ts``: of the ledger."""
        self.newest = newest
        self.begin_ts = begin_ts
        """Row changes up to it are not kept; 0: all are."""
        self.rows = rows.select(COLUMNS).sort_by([("resolved_ts", "ascending"), ("number", "ascending")])
        """``COLUMNS``, in order."""
        self._ts = self.rows["resolved_ts"].to_numpy()

    @property
    def first_ts(self) -> int | None:
        """The first moment; None: there is none."""
        return int(self._ts[0]) if len(self._ts) else None

    @property
    def kept_ts(self) -> int:
        """The first moment that can be read, whenever it was published."""
        return self.newest.kept_ts

    def at(self, ts: int) -> dict[int, TablePlace]:
        """The newest row of each table at ``ts``, by table id."""
        count = int(np.searchsorted(self._ts, ts, side="right"))
        ids = self.rows["table_id"].to_numpy()[:count][::-1]
        last = count - 1 - np.unique(ids, return_index=True)[1]
        return {row["table_id"]: TablePlace(**row) for row in self.rows.take(pa.array(np.sort(last))).to_pylist()}

    def newest_moment(self, ledger_ts: int, ddls: Iterable[tuple[int, int]]) -> int:
        """The commit_ts up to which tables are known: the end of the ledger, but not past a DDL that mirrors have not followed.

        ``ddls``: commit_ts and job id of the ledger's DDLs, at least from ``followed_ts`` on.
        """
        ahead = [ts for ts, job in ddls if ts > self.followed_ts or (ts == self.followed_ts and job not in self.newest.jobs)]
        return min([ledger_ts, *(ts - 1 for ts in ahead)])

    @property
    def followed_ts(self) -> int:
        """The commit_ts up to which all changes are in the mirrors."""
        return self.newest.resolved_ts

    def complete_ts(self, place: TablePlace, ts: int) -> int:
        """The commit_ts up to which the version of ``place``, which holds at ``ts``, has all changes of its table."""
        return max(place.upto_ts, self.followed_ts) if ts >= self.followed_ts else place.upto_ts

    def rows_called(self, database: str, table: str) -> pa.Table:
        """The rows that were published under a name at any time."""
        pairs = (("database", database), ("table", table))
        return self.rows.filter(pc.and_(*(pc.equal(pc.utf8_lower(self.rows[column]), name.lower()) for column, name in pairs)))

    def table_at(self, name: str, ts: int) -> TablePlace:
        """The table of this name, which can be read at ``ts``.

        Raises:
            ConfigError: there is none, or it was set aside.
        """
        place = self.called(name, ts)
        if place.state != MIRRORED:
            raise ConfigError(f"{place} {_LEFT.get(place.state, 'was set aside')} {self._since(place)}")
        return place

    def called(self, name: str, ts: int) -> TablePlace:
        """The table that has this name at ``ts``; if none has it, one that had it when it was dropped.

        Raises:
            ConfigError: there is none.
        """
        wanted, places = NamedTable.of(name), self.at(ts)
        named = [place for place in places.values() if wanted.is_of(place.database, place.table)]
        if not named:
            raise ConfigError(f"there is no table {wanted} at {as_time(ts)} ({ts}); {self._meant(wanted, places, ts)}")
        return max(named, key=lambda place: (place.state != DROPPED, place.resolved_ts, place.number))

    def _since(self, place: TablePlace) -> str:
        """The time at which a table left, the reason, and how to read the table just before, in words."""
        mine = self.rows.filter(pc.equal(self.rows["table_id"], place.table_id)).to_pylist()
        good = [number for number, row in enumerate(mine) if row["state"] == MIRRORED and row["resolved_ts"] <= place.resolved_ts]
        left = mine[good[-1] + 1 if good else 0]["resolved_ts"]
        why = f": {place.why}" if place.why else ""
        return f"at {as_time(left)} ({left}){why}" + (f'; lake.at({left - 1}).table("{place}") is the table just before' if good else "")

    def _meant(self, wanted: NamedTable, places: Mapping[int, TablePlace], ts: int) -> str:
        later = self.rows_called(wanted.database, wanted.table).filter(pc.field("resolved_ts") > ts)
        if later.num_rows:
            return f"the lake has it from {as_time(later['resolved_ts'][0].as_py())} ({later['resolved_ts'][0]}) on"
        names = [str(place) for place in places.values() if place.state != DROPPED]
        return "".join(f"did you mean {near}? " for near in nearest(str(wanted), names)) + "lake.tables() lists the tables"


def published_of(lake: str, begin_ts: int = 0) -> Published:
    """What was published up to the newest moment. ``begin_ts``: of the ledger.

    Raises:
        ConfigError: nothing was.
    """
    newest = Snapshots(lake).load()
    rows = scanned(f"{lake}/snapshots", COLUMNS, f"resolved_ts <= {newest.resolved_ts}") if newest is not None else None
    if newest is None or rows is None or (published := Published(rows.read_all(), newest, begin_ts)).first_ts is None:
        raise ConfigError(
            f"no table of the lake {lake} was published yet: wait for the Drainer's first moment; the ledger is in {lake}/changes"
        )
    return published


def readable(places: Mapping[int, TablePlace]) -> Sequence[TablePlace]:
    """The tables that a moment has, by name."""
    return sorted((place for place in places.values() if place.state != DROPPED), key=lambda place: (place.database, place.table))
