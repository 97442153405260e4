"""Which version of each mirror makes up the lake at a moment. Pure.

    snapshots    resolved_ts 100: orders is version 4 of tables/7, complete up to 100;  130: orders is version 5, up to 130
    at 120       version 4 of tables/7, and the ledger's rows of table 7 in (100, 120]

Promises: an answer depends on what was published up to the moment only. A table that is not readable at the moment is an error with its reason.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.conf.kinds import nearest
from pyspark_tidb_binlog.schemas.changes.table_names import NamedTable
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.sinks.lake.moments import DROPPED, LOADING, MIRRORED, MirrorState, Moment


@dataclass(frozen=True, slots=True)
class TablePlace(MirrorState):
    """A table as published: a row of ``snapshots``, without the definition."""

    resolved_ts: int = 0
    number: int = 0


COLUMNS = tuple(name for name in TablePlace.__dataclass_fields__ if name != "info")
_LEFT = {DROPPED: "was dropped", LOADING: "is not loaded yet; it is to be read from the upstream since"}


class Published:
    """All that was published, in its order."""

    def __init__(self, rows: pa.Table, newest: Moment, begin_ts: int = 0) -> None:
        """``rows``: ``COLUMNS`` of the table ``snapshots``. ``newest``: how far mirrors have followed the ledger. ``begin_ts``: of the ledger."""
        self._followed = newest
        self.begin_ts = begin_ts
        """Row changes up to it are not kept; 0: all are."""
        self._rows = rows.select(COLUMNS).sort_by([("resolved_ts", "ascending"), ("number", "ascending")])
        self._ts = self._rows["resolved_ts"].to_numpy()

    @property
    def first_ts(self) -> int | None:
        """The first moment; None: there is none."""
        return int(self._ts[0]) if len(self._ts) else None

    @property
    def kept_ts(self) -> int:
        """The first moment that can be read, whenever it was published."""
        return self._followed.kept_ts

    def at(self, ts: int) -> dict[int, TablePlace]:
        """The newest row of each table at ``ts``, by table id."""
        count = int(np.searchsorted(self._ts, ts, side="right"))
        ids = self._rows["table_id"].to_numpy()[:count][::-1]
        last = count - 1 - np.unique(ids, return_index=True)[1]
        return {row["table_id"]: TablePlace(**row) for row in self._rows.take(pa.array(np.sort(last))).to_pylist()}

    def newest_moment(self, ledger_ts: int, ddls: Iterable[tuple[int, int]]) -> int:
        """The commit_ts up to which tables are known: the end of the ledger, but not past a DDL that mirrors have not followed.

        ``ddls``: commit_ts and job id of the ledger's DDLs, at least from ``followed_ts`` on.
        """
        ahead = [ts for ts, job in ddls if ts > self.followed_ts or (ts == self.followed_ts and job not in self._followed.jobs)]
        return min([ledger_ts, *(ts - 1 for ts in ahead)])

    @property
    def followed_ts(self) -> int:
        """The commit_ts up to which all changes are in the mirrors."""
        return self._followed.resolved_ts

    def complete_ts(self, place: TablePlace, ts: int) -> int:
        """The commit_ts up to which the version of ``place``, which holds at ``ts``, has all changes of its table."""
        return max(place.upto_ts, self.followed_ts) if ts >= self.followed_ts else place.upto_ts

    def rows_called(self, database: str, table: str) -> pa.Table:
        """The rows that were published under a name at any time."""
        pairs = (("database", database), ("table", table))
        return self._rows.filter(pc.and_(*(pc.equal(pc.utf8_lower(self._rows[column]), name.lower()) for column, name in pairs)))

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
        mine = self._rows.filter(pc.equal(self._rows["table_id"], place.table_id)).to_pylist()
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


def readable(places: Mapping[int, TablePlace]) -> Sequence[TablePlace]:
    """The tables that a moment has, by name."""
    return sorted((place for place in places.values() if place.state != DROPPED), key=lambda place: (place.database, place.table))
