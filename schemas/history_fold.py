"""The fold behind ``schemas.history``: applies DDL jobs one by one to the schema known so far.

Promises: pure. The jobs must have an effect and ascend by version. A further job costs only what the job changes.
"""

import dataclasses
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar, cast

from pyspark_tidb_binlog.schemas.ddl_jobs import DbInfo, Job, JobEffect, JobType
from pyspark_tidb_binlog.schemas.ddl_tokens import rename_pairs
from pyspark_tidb_binlog.schemas.events import SchemaVersion
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """One table from ``version`` on."""

    version: SchemaVersion
    schema: str
    name: str
    info: TableInfo


@dataclass(frozen=True, slots=True)
class Dropped:
    """The table id does not exist from ``version`` on."""

    version: SchemaVersion


@dataclass(frozen=True, slots=True)
class Track:
    """The history of one table id: ``entries`` ascending, and the versions and ids of its jobs."""

    entries: tuple[TableSnapshot | Dropped, ...]
    versions: tuple[SchemaVersion, ...]
    job_ids: tuple[int, ...]


@dataclass(slots=True)
class _Growing:
    entries: list[TableSnapshot | Dropped] = field(default_factory=list)
    jobs: list[tuple[SchemaVersion, int]] = field(default_factory=list)

    @property
    def live(self) -> TableSnapshot | None:
        last = self.entries[-1] if self.entries else None
        return last if isinstance(last, TableSnapshot) else None


INITIAL = DbInfo(1, "mysql", "utf8mb4", "utf8mb4_bin")


LATE = 1024
K = TypeVar("K")
V = TypeVar("V")


def extended(known: Mapping[K, V], more: Mapping[K, V]) -> Mapping[K, V]:
    """Return ``known`` with ``more``, which wins. A history may have a hundred thousand jobs: copied are at most the newest ``LATE`` entries, and all
    only once per ``LATE`` new ones. Neither argument may be changed afterwards.
    """
    late, base = known.maps if isinstance(known, ChainMap) else ({}, cast("dict[K, V]", known))
    late = {**late, **more}
    return ChainMap(late, base) if len(late) <= LATE else ChainMap({}, {**base, **late})


class Fold:
    """The state while folding."""

    def __init__(self) -> None:
        """The initial state has only the database ``mysql``."""
        self._tracks: Mapping[int, Track] = {}
        self._tables: dict[int, _Growing] = {}
        self._schemas: dict[int, list[tuple[SchemaVersion, DbInfo | None]]] = {1: [(SchemaVersion(0), INITIAL)]}
        self._homes: dict[int, int] = {}
        self._residents: dict[int, set[int]] = {}
        self._views: dict[tuple[str, str], set[int]] = {}
        self._fell_with: dict[int, list[int]] = {}
        self._touched: dict[int, set[int]] = {}
        self._settled: Mapping[int, tuple[int, ...]] = {}
        self.count = 0
        """How many jobs were folded."""

    def tracks(self) -> Mapping[int, Track]:
        """The resulting tracks, by table id."""
        grown = {i: Track(tuple(g.entries), tuple(v for v, _ in g.jobs), tuple(j for _, j in g.jobs)) for i, g in self._tables.items()}
        self._tracks = extended(self._tracks, grown)
        self._tables.clear()
        return self._tracks

    def schemas(self) -> dict[int, tuple[tuple[SchemaVersion, DbInfo | None], ...]]:
        """The resulting databases, by schema id."""
        return {i: tuple(entries) for i, entries in self._schemas.items()}

    def touched(self) -> Mapping[int, tuple[int, ...]]:
        """The table ids that each job changed, by job id."""
        self._settled = extended(self._settled, {job_id: tuple(sorted(ids)) for job_id, ids in self._touched.items()})
        self._touched.clear()
        return self._settled

    def apply(self, job: Job) -> None:
        """Fold one effective job."""
        self.count += 1
        kind = job.type
        if kind in (JobType.CREATE_SCHEMA, JobType.SCHEMA_CHARSET) and job.db_info:
            self._put_schema(job, job.db_info)
        elif kind == JobType.DROP_SCHEMA:
            self._drop_schema(job)
        elif kind == JobType.RECOVER_SCHEMA:
            self._recover_schema(job)
        elif job.kind.effect is JobEffect.DROPS:
            self._drop(job, job.table_id)
        elif job.kind.new_table_id:
            self._renumber(job)
        elif kind == JobType.RENAME_TABLES:
            self._rename_all(job)
        elif job.kind.effect is JobEffect.EXCHANGES:
            self._exchange(job)
        elif kind == JobType.CREATE_TABLES:
            for info in job.multiple_table_infos:
                self._put(job, info, self._schema_name(job))
        elif job.table_info is not None:
            self._put_table(job, job.table_info)

    def _live(self, table_id: int) -> TableSnapshot | None:
        growing = self._tables.get(table_id)
        if growing is not None:
            return growing.live
        track = self._tracks.get(table_id)
        last = track.entries[-1] if track is not None and track.entries else None
        return last if isinstance(last, TableSnapshot) else None

    def _growing(self, table_id: int) -> _Growing:
        growing = self._tables.get(table_id)
        if growing is None:
            track = self._tracks.get(table_id)
            growing = _Growing(list(track.entries), list(zip(track.versions, track.job_ids, strict=True))) if track else _Growing()
            self._tables[table_id] = growing
        return growing

    def _move_in(self, table_id: int, schema_id: int) -> None:
        self._residents.get(self._homes.get(table_id, 0), set()).discard(table_id)
        self._homes[table_id] = schema_id
        self._residents.setdefault(schema_id, set()).add(table_id)

    def _schema_name(self, job: Job) -> str:
        entries = self._schemas.get(job.schema_id)
        info = entries[-1][1] if entries else None
        return info.name if info else job.schema_name

    def _put_schema(self, job: Job, info: DbInfo) -> None:
        self._schemas.setdefault(job.schema_id or info.id, []).append((job.version, info))

    def _put_table(self, job: Job, info: TableInfo) -> None:
        known = self._live(info.id)
        if known is not None and job.kind.effect not in (JobEffect.MAKES, JobEffect.RESTORES, JobEffect.RENAMES):
            self._put(job, info, known.schema, home=False)
            return
        schema = self._schema_name(job)
        if job.type == JobType.CREATE_VIEW:
            self._drop_replaced(job, schema, info)
        self._put(job, info, schema)

    def _drop_replaced(self, job: Job, schema: str, view: TableInfo) -> None:
        """CREATE OR REPLACE VIEW gives the view a new id and drops the old one without a job for it."""
        named = (schema, view.name.lower())
        for table_id in sorted(self._views.get(named, ())):
            live = self._live(table_id)
            if live and table_id != view.id and (live.schema, live.name.lower()) == named:
                self._drop(job, table_id)

    def _put(self, job: Job, info: TableInfo, schema: str, *, home: bool = True) -> None:
        if home:
            self._move_in(info.id, job.schema_id)
        if info.is_view:
            self._views.setdefault((schema, info.name.lower()), set()).add(info.id)
        self._push(info.id, TableSnapshot(job.version, schema, info.name, info), job)

    def _push(self, table_id: int, entry: TableSnapshot | Dropped, job: Job) -> None:
        """One job adds one entry per table id, although a three-way swap changes one id twice."""
        growing = self._growing(table_id)
        if growing.entries and growing.entries[-1].version == entry.version:
            growing.entries.pop()
        growing.entries.append(entry)
        if (job.version, job.id) not in growing.jobs[-1:]:
            growing.jobs.append((job.version, job.id))
        self._touched.setdefault(job.id, set()).add(table_id)

    def _drop(self, job: Job, table_id: int) -> None:
        if self._live(table_id) is not None:
            self._push(table_id, Dropped(job.version), job)

    def _drop_schema(self, job: Job) -> None:
        entries = self._schemas.setdefault(job.schema_id, [])
        if entries and entries[-1][1] is not None:
            entries.append((job.version, None))
        fallen = sorted(i for i in self._residents.get(job.schema_id, ()) if self._live(i))
        self._fell_with[job.schema_id] = fallen
        for table_id in fallen:
            self._drop(job, table_id)

    def _recover_schema(self, job: Job) -> None:
        """FLASHBACK DATABASE: its job names no table, so the tables dropped with the database are restored."""
        before = next((info for _, info in reversed(self._schemas.get(job.schema_id, ())) if info is not None), None)
        info = job.db_info or before
        if info is not None:
            self._put_schema(job, info)
        for table_id in self._fell_with.pop(job.schema_id, ()):
            growing = self._growing(table_id)
            last = next(e for e in reversed(growing.entries) if isinstance(e, TableSnapshot))
            self._push(table_id, TableSnapshot(job.version, last.schema, last.name, last.info), job)

    def _renumber(self, job: Job) -> None:
        known = self._live(job.table_id)
        self._drop(job, job.table_id)
        if job.table_info is not None:
            self._put(job, job.table_info, known.schema if known else self._schema_name(job))

    def _rename_all(self, job: Job) -> None:
        """Element i of MultipleTableInfos belongs to pair i of the text; only the text names the databases."""
        infos = job.multiple_table_infos or ((job.table_info,) if job.table_info else ())
        pairs = rename_pairs(job.query)
        if len(pairs) != len(infos):
            pairs = ()
        olds = [self._live(info.id) for info in infos]
        unqualified = (old.schema for old, (name, _) in zip(olds, pairs, strict=False) if old and not name.schema)
        session = next(unqualified, self._schema_name(job))
        for i, info in enumerate(infos):
            old = olds[i]
            if pairs:
                schema = self._true_name(pairs[i][1].schema or session)
            else:
                schema = old.schema if old else session
            self._put(job, info, schema, home=False)
            self._move_in(info.id, self._schema_id(schema, job))

    def _true_name(self, schema: str) -> str:
        """The database's name in the case in which it was created."""
        live = (entries[-1][1] for entries in self._schemas.values())
        return next((info.name for info in live if info and info.name.lower() == schema.lower()), schema)

    def _schema_id(self, schema: str, job: Job) -> int:
        live = ((i, entries[-1][1]) for i, entries in self._schemas.items())
        return next((i for i, info in live if info and info.name == schema), job.schema_id)

    def _exchange(self, job: Job) -> None:
        """The plain table continues under the partition's old id; the partition takes the plain table's id."""
        after = job.table_info
        if after is None:
            return
        parent = self._live(after.id)
        plain = self._live(job.table_id)
        before_ids = {p.name: p.id for p in parent.info.partitions} if parent else {}
        moved = next((p.name for p in after.partitions if p.id == job.table_id), None)
        self._put(job, after, parent.schema if parent else self._schema_name(job), home=parent is None)
        new_id = before_ids.get(moved) if moved is not None else None
        if plain is None or new_id is None:
            return
        home = self._homes.get(job.table_id, job.schema_id)
        self._drop(job, job.table_id)
        self._put(job, dataclasses.replace(plain.info, id=new_id), plain.schema)
        self._move_in(new_id, home)
