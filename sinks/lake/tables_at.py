"""The tables of a lake at one moment, read by delta-rs in this process, without a JVM.

    orders is version 5 of tables/7, complete up to 130;  the moment is 150
    -> the rows of version 5 that the ledger has not changed in (130, 150], and the last images of those that it has

``lake_reader`` makes DataFrames of the same moment.

Promises: nothing is written. A ``TablesAt`` stays at its moment. Memory holds the keys of the changed rows, and some ``PIECE_BYTES`` of changes.
"""

import datetime
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.changes.change_rows import commit_time
from pyspark_tidb_binlog.schemas.changes.json_texts import documents_as
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import as_time, physical_ms, ts_at
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo
from pyspark_tidb_binlog.sinks.lake.lake_table import scanned
from pyspark_tidb_binlog.sinks.lake.ledger import Ledger
from pyspark_tidb_binlog.sinks.lake.ledger_rows import ORDER
from pyspark_tidb_binlog.sinks.lake.mirror_table import not_among, rows_of_version
from pyspark_tidb_binlog.sinks.lake.moments import MIRRORED, Published, TablePlace, published_of, readable
from pyspark_tidb_binlog.sinks.lake.net_changes import NEEDED, MirrorChanges, RowPieces, mirror_schema, net_changes

When = str | int | datetime.datetime
CHANGES_READ = tuple(dict.fromkeys((*NEEDED, "schema_version")))
"""The columns of the ledger of which a table's net changes are made."""
_VERSIONS = pa.schema(
    [(name, pa.string()) for name in ("database", "table", "path")] + [(name, pa.int64()) for name in ("version", "complete_ts")]
)
_SNAPSHOTS = ("resolved_ts", "table_id", "database", "table", "path", "version", "upto_ts", "schema_version", "state", "why")


@dataclass(frozen=True, slots=True)
class TablesAt:
    """A lake at one moment."""

    directory: str
    published: Published
    commit_ts: int
    """The moment."""
    ledger_version: int
    """A version of the ledger that has all changes up to the moment."""

    @classmethod
    def newest(cls, directory: str | Path) -> Self:
        """The newest moment that can be known. ``directory``: path or URI of the lake.

        Raises:
            ConfigError: it is no lake, or nothing was published yet.
        """
        place = str(directory).rstrip("/")
        ledger = Ledger(place)
        state = ledger.load()
        if state is None:
            raise ConfigError(f"{place} is no lake: there is no ledger in {place}/changes; give the directory of syncer.to.dir")
        published = published_of(place, state.begin_ts)
        ddls = scanned(f"{place}/changes", ("commit_ts", "job_id"), f"op = 'ddl' AND commit_ts >= {published.followed_ts}")
        found = [(row["commit_ts"], row["job_id"]) for row in ddls.read_all().to_pylist()] if ddls is not None else []
        return cls(place, published, published.newest_moment(state.commit_ts or 0, found), ledger.version)

    def at(self, when: When) -> Self:
        """The lake at an earlier moment (``LakeNow.at``).

        Raises:
            ConfigError: it is before the first moment that was published, or that is kept, or above this one.
        """
        ts, first, kept_ts = self.ts_of(when), self.published.first_ts, self.published.kept_ts
        if first is not None and first <= kept_ts and ts < kept_ts:
            since = f" since {as_time(self.published.begin_ts)}" if self.published.begin_ts else ""
            raise ConfigError(
                f"the lake {self.directory} keeps its tables from {as_time(kept_ts)} ({kept_ts}) on, so there are none at {when}; lake.changes() "
                f"has every change{since}, and spark.delta-retention says how far back tables are kept from then on"
            )
        if first is None or ts < first:
            raise ConfigError(f"the lake {self.directory} has no tables before {as_time(first or 0)} ({first}), so none at {when}")
        self.require_read(ts, f"{when} is")
        return replace(self, commit_ts=ts)

    def ts_of(self, when: When) -> int:
        """The ts that ``when`` means, as ``at`` takes it: of a time the last one in its millisecond, as far as the lake was read."""
        if isinstance(when, int) or (isinstance(when, str) and when.strip().isdigit()):
            return int(when)
        ts = ts_at("at", when.isoformat() if isinstance(when, datetime.datetime) else when, last=True)
        return self.commit_ts if physical_ms(ts) == physical_ms(self.commit_ts) else ts

    def require_read(self, ts: int, what: str) -> None:
        """Raises ``ConfigError`` if ``ts`` is above the moment."""
        if ts > self.commit_ts:
            raise ConfigError(
                f"the lake {self.directory} was read up to {as_time(self.commit_ts)} ({self.commit_ts}), so {what} not known; lake.refresh() reads on"
            )

    def tables(self) -> pa.Table:
        """The tables that there are: ``database``, ``table``, ``table_id``, ``state``, ``why``."""
        rows = [(t.database, t.table, t.table_id, t.state, t.why) for t in readable(self.published.at(self.commit_ts))]
        kinds = {"database": pa.string(), "table": pa.string(), "table_id": pa.int64(), "state": pa.string(), "why": pa.string()}
        return pa.table([pa.array([row[at] for row in rows], kind) for at, kind in enumerate(kinds.values())], list(kinds))

    def versions(self) -> pa.Table:
        """The Delta table of each table, and of the ledger, whose name is null: ``database``, ``table``, ``path``, ``version``, ``complete_ts``.

        The version has exactly what was committed up to ``complete_ts``, but that of the ledger has more. Of the newest moment ``complete_ts`` is the same for all tables.
        """
        places = [place for place in readable(self.published.at(self.commit_ts)) if place.state == MIRRORED]
        rows = [
            {
                "database": place.database,
                "table": place.table,
                "path": f"{self.directory}/{place.path}",
                "version": place.version,
                "complete_ts": self.published.complete_ts(place, self.commit_ts),
            }
            for place in places
        ]
        ledger = {"path": f"{self.directory}/changes", "version": self.ledger_version, "complete_ts": self.commit_ts}
        return pa.Table.from_pylist([*rows, ledger], _VERSIONS)

    def snapshots(self) -> pa.Table:
        """The published rows up to the moment, in order: the version of each table that changed, at ``resolved_ts``."""
        rows = self.published.rows.filter(pc.field("resolved_ts") <= self.commit_ts).select(_SNAPSHOTS)
        return rows.add_column(1, "resolved_time", commit_time(rows["resolved_ts"].to_numpy()))

    def info(self, place: TablePlace) -> TableInfo:
        """The definition of a table. ``ConfigError``: it is not kept any more."""
        # Its own row may have been thinned since this lake was read; others of the same definition stay.
        where = f"table_id = {place.table_id} AND schema_version = {place.schema_version} AND state = '{MIRRORED}'"
        found = scanned(f"{self.directory}/snapshots", ["info"], where)
        infos = found.read_all()["info"] if found is not None else []
        if not len(infos):
            raise ConfigError(
                f"{place} as of {as_time(self.commit_ts)} ({self.commit_ts}) is not kept any more: make the Lake anew, or refresh it"
            )
        return TableInfo.from_json(json.loads(infos[0].as_py()))

    def changed_since(self, place: TablePlace) -> str:
        """The condition, in SQL, of the ledger's row changes that the version of a mirror lacks."""
        since_ts = self.published.complete_ts(place, self.commit_ts)
        return f"table_id = {place.table_id} AND commit_ts > {since_ts} AND commit_ts <= {self.commit_ts} AND op <> 'ddl'"

    def rows(self, name: str) -> pa.RecordBatchReader:
        """The rows of the table ``name`` (``shop.orders``), in any order; a JSON document is a text. Reading them raises ``ApplyError`` if a file is not there
        any more.

        Raises:
            ConfigError: there is no such table at the moment, or it was set aside then.
        """
        place = self.published.table_at(name, self.commit_ts)
        info = self.info(place)
        fields = [mirror_schema(info).field(column.name) for column in info.target_columns()]
        schema = pa.schema([f.with_type(pa.string()) if pa.types.is_struct(f.type) else f for f in fields])
        batches = (
            batch.cast(schema)
            for rows in self._rows(place, info)
            for batch in pa.table(
                [documents_as(rows[name].combine_chunks(), pa.string()) for name in schema.names], schema.names
            ).to_batches()
        )
        return pa.RecordBatchReader.from_batches(schema, batches)

    def _rows(self, place: TablePlace, info: TableInfo) -> Iterator[pa.Table]:
        changes = scanned(f"{self.directory}/changes", CHANGES_READ, self.changed_since(place))
        uri = f"{self.directory}/{place.path}"
        assert changes is not None and place.version is not None
        with RowPieces(changes, changes.schema, None) as pieces:
            found = [net.found_by for net in _net(pieces, info)]
            ids = pa.concat_tables(found) if found else None
            for batch in rows_of_version(uri, place.version):
                rows = pa.Table.from_batches([batch])
                yield rows if ids is None else rows.filter(pa.array(not_among(rows.select(ids.column_names), ids)))
            for net in _net(pieces, info):
                yield net.rows.filter(pc.invert(net.gone))


def _net(pieces: RowPieces, info: TableInfo) -> Iterator[MirrorChanges]:
    for piece in pieces:
        if (net := net_changes(piece.sort_by(ORDER), info)) is not None:
            yield net
