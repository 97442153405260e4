"""Rows of a table, summed up by their hashes, so that two sides can be compared in little memory. Pure.

    canonical bytes of cells -> a hash of each row -> how many rows, and the sum of their hashes, in a bucket

Rows that are equal on both sides are in one bucket, so what differs is in buckets that differ. A row that is there twice counts twice.

Promises: other cells, or the same ones in other columns, have the same hash once in 2**64 times. NULL is not an empty text.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.sinks.engine.fold import mixed_in

BUCKETS = 1 << 18
LONG = 1 << 12
"""Bytes of a cell that is long."""
MOST_ROWS = 50_000
"""Rows of buckets that differ, which are read again."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """Rows, summed up. It has one size, whatever the table's."""

    counts: Any = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    sums: Any = field(default_factory=lambda: np.zeros(BUCKETS, np.uint64))

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.counts.sum())

    def add(self, keys: Any, rows: Any) -> None:
        """Count rows, by the hashes of their keys and of themselves."""
        at = buckets_of(keys)
        np.add.at(self.counts, at, 1)
        np.add.at(self.sums, at, rows)

    def include(self, other: "Buckets") -> None:
        """Take in the rows of another part."""
        self.counts[:] += other.counts
        self.sums[:] += other.sums

    def unlike(self, other: "Buckets") -> Any:
        """The numbers of the buckets that differ."""
        return np.flatnonzero((self.counts != other.counts) | (self.sums != other.sums))

    def within_room(self, other: "Buckets") -> tuple[Any, int]:
        """The numbers of buckets that differ and have ``MOST_ROWS`` rows together, and how many rows the others have that differ."""
        unlike = self.unlike(other)
        rows = np.maximum(self.counts, other.counts)[unlike]
        fits = np.cumsum(rows) <= MOST_ROWS
        return unlike[fits], int(rows[~fits].sum())


def buckets_of(keys: Any) -> Any:
    """The bucket of each row, by the hash of its key."""
    return (keys % np.uint64(BUCKETS)).astype(np.int64)


def shortened(cells: pa.BinaryArray) -> pa.BinaryArray:
    """The cells as they are hashed: of a long one its SHA-1, because words are mixed in one after the other."""
    long = pc.fill_null(pc.greater(pc.binary_length(cells), LONG), False)
    if not pc.any(long).as_py():
        return cells
    digests = [hashlib.sha1(cell.as_py(), usedforsecurity=False).digest() for cell in cells.filter(long)]
    return pc.replace_with_mask(cells, long, pa.array(digests, pa.binary()))


def hashes_of(columns: Sequence[pa.BinaryArray], begin: Any = 0) -> Any:
    """A hash of each row's ``shortened`` cells, as uint64. ``begin``: hashes of other cells, which count, too."""
    hashes = np.zeros(len(columns[0]), np.uint64) + np.uint64(begin)
    for cells in columns:
        hashes = mixed_in(hashes ^ cells.is_null().to_numpy(zero_copy_only=False), cells.fill_null(b""))
    return hashes
