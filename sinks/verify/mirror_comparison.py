"""Compares one mirror, at a published version, with the upstream's table at the same moment. [db]

    both sides, all rows       -> sums of hashes, in buckets by the hash of the key
    buckets that differ        -> their rows are read again on both sides
    rows of one key            -> missing, only in the lake, or changed, and in which columns

The upstream's rows become rows of a mirror by the code of a first load, so each value is compared with what the mirror should have.

Promises: equal tables need memory for their buckets and a block of rows, whatever their size. Differing ones need the rows of ``hash_sums.MOST_ROWS``, too. Nothing
is written.
"""

import datetime
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_string
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.sinks.bootstrap.key_ranges import KeyRange
from pyspark_tidb_binlog.sinks.bootstrap.mirror_rows import mirror_rows
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SnapshotSource
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.session import KeptSessions
from pyspark_tidb_binlog.sinks.verify.hash_sums import Buckets, buckets_of
from pyspark_tidb_binlog.sinks.verify.repair import Image, Kind, Row
from pyspark_tidb_binlog.sinks.verify.row_hashes import RowShape
from pyspark_tidb_binlog.sinks.verify.table_comparison import Tally


@dataclass(frozen=True, slots=True)
class LakeDifference:
    """A row that differs in a lake, or some rows."""

    kind: Kind
    key: Image
    changed: Sequence[str]
    times: int = 1
    images: tuple[Image | None, Image | None] = (None, None)

    def sql(self, flavour: Flavour) -> list[str]:
        """None: only the Drainer writes to a lake."""
        return []


Part = Callable[[], Iterator[pa.RecordBatch]]
"""Reads a part of a table on one side. Parts can be read at the same time, and as often as wanted."""


def upstream_rows(source: SnapshotSource, sessions: KeptSessions, ts: int, table: TableAt, within: KeyRange) -> Iterator[pa.RecordBatch]:
    """The rows of a range of the table upstream, as ``mirror_schema``."""
    with source.at(ts, sessions) as session:
        yield from mirror_rows(session, table, within)


@dataclass(frozen=True, slots=True)
class MirrorComparison:
    """One table."""

    shape: RowShape
    upstream: Sequence[Part]
    mirror: Sequence[Part]
    threads: int
    """Parts of the upstream that are read at a time."""

    def compare(self) -> Iterator[Tally]:
        """What is read so far, after each part; the last one is what is found."""
        wanted, found = Buckets(), Buckets()
        yield from self._sum_up(wanted, found)
        among, unlisted = wanted.within_room(found)
        tally = Tally(wanted.rows, unlisted=unlisted)
        if len(among):
            self._compare_rows(self._rows_in(self.upstream, among), self._rows_in(self.mirror, among), tally)
        yield tally

    def _sum_up(self, upstream: Buckets, mirror: Buckets) -> Iterator[Tally]:
        with ThreadPoolExecutor(1 + self.threads, "verify") as pool:
            others = [pool.submit(self._sum, part) for part in self.mirror]
            parts = [pool.submit(self._sum, part) for part in self.upstream]
            try:
                for part in as_completed(parts):
                    upstream.include(part.result())
                    yield Tally(upstream.rows)
                for part in others:
                    mirror.include(part.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _sum(self, part: Part) -> Buckets:
        found = Buckets()
        for rows in part():
            found.add(*self.shape.hashes(self.shape.bytes_of(rows)))
        return found

    def _rows_in(self, side: Sequence[Part], chosen: Any) -> "_RowsOfKeys":
        found = _RowsOfKeys(self.shape)
        for part in side:
            for rows in part():
                cells = self.shape.bytes_of(rows)
                key, _ = self.shape.hashes(cells)
                if (mask := np.isin(buckets_of(key), chosen)).any():
                    found.add(rows, cells, pa.array(mask))
        return found

    def _compare_rows(self, wanted: "_RowsOfKeys", found: "_RowsOfKeys", tally: Tally) -> None:
        for key in sorted(wanted.rows.keys() | found.rows.keys(), key=repr):
            there, here = wanted.rows[key], found.rows[key]
            for difference in self._differences(there - here, here - there, wanted.images | found.images):
                tally.take((*key, str(len(tally.differences)).encode()), difference)

    def _differences(self, missing: Counter[Row], more: Counter[Row], images: Mapping[Row, Image]) -> Iterator[LakeDifference]:
        """The differences of the rows that have one key."""
        names = self.shape.names
        if missing.total() == more.total() == 1:
            (one,), (other,) = missing, more
            changed = [name for name, a, b in zip(names, one, other, strict=True) if a != b]
            yield LakeDifference(Kind.CHANGED, self._key(images[one]), changed, 1, (images[one], images[other]))
            return
        for row, times in missing.items():
            yield LakeDifference(Kind.MISSING, self._key(images[row]), names, times, (images[row], None))
        for row, times in more.items():
            yield LakeDifference(Kind.EXTRA, self._key(images[row]), names, times, (None, images[row]))

    def _key(self, image: Image) -> Image:
        return {name: image[name] for name in (self.shape.names[place] for place in self.shape.key)}


class _RowsOfKeys:
    """Rows by their key."""

    def __init__(self, shape: RowShape) -> None:
        self._shape = shape
        self.rows: defaultdict[Row, Counter[Row]] = defaultdict(Counter)
        self.images: dict[Row, Image] = {}

    def add(self, rows: pa.RecordBatch, cells: Sequence[pa.BinaryArray], mask: pa.Array) -> None:
        """Add the rows of ``mask``; ``cells``: their canonical bytes."""
        names, chosen = self._shape.names, rows.filter(mask)
        values = [self._shape.shown(chosen.column(name), name).to_pylist() for name in names]
        for row, shown in zip(zip(*(one.filter(mask).to_pylist() for one in cells), strict=True), zip(*values, strict=True), strict=True):
            self.rows[tuple(row[place] for place in self._shape.key)][row] += 1
            self.images[row] = dict(zip(names, map(_literal, shown), strict=True))


def _literal(value: Any) -> str:
    """A value, for people."""
    match value:
        case None:
            return "NULL"
        case bytes():
            return f"x'{value.hex().upper()}'"
        case str():
            return quote_string(value)
        case datetime.date():
            return f"'{value}'"
        case _:
            return str(value)
