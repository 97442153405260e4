"""Compares the rows of one table between readers that stand at one S: ranges of its key, or all rows as a multiset. [db]

    sums of a range differ   -> halves, by the key in the middle of the upstream's rows, until they are few
    few rows of the upstream -> the target's rows with the same keys: what is missing or changed
    then the same the other way round: what only the target has

Ranges need not mean the same to both servers. For any boundaries each row is in at least one range on each side: a row is not below the first (open) end, and below the
last (open) one, so there is a range between. So a row that differs makes the sums of a range differ. A row that another collation puts into another range is found by its key.

Promises: memory holds the rows of ``_FEW`` keys, or of ``hash_sums.MOST_ROWS`` rows without a key, and the differences that are listed. Nothing is written.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_tidb_binlog.sinks.bootstrap.key_ranges import Key, KeyRange
from pyspark_tidb_binlog.sinks.bootstrap.upstream_values import cells_of, whole
from pyspark_tidb_binlog.sinks.mysql.row_packets import Columns
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.verify.canonical import COUNTED, Form, canonical
from pyspark_tidb_binlog.sinks.verify.hash_sums import Buckets, buckets_of, hashes_of, shortened
from pyspark_tidb_binlog.sinks.verify.repair import Kind, Row, RowDifference, by_kind, compared, counted, identity_of, lookup_sql
from pyspark_tidb_binlog.sinks.verify.standing import SidePair, unlocked
from pyspark_tidb_binlog.sinks.verify.table_pair import TablePair, TableSide

_FEW = 100
"""Rows of a range that are read and not halved."""
MOST_LISTED = 1000
"""Differences of a table that are listed."""
EVERYTHING = KeyRange()
_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class RangeSum:
    """The rows of a range on one side, summed up."""

    rows: int
    total: int

    def __sub__(self, other: "RangeSum") -> "RangeSum":
        return RangeSum(self.rows - other.rows, self.total - other.total)


@dataclass(slots=True)
class Tally:
    """What is found of a table, or of a part of it."""

    rows: int = 0
    """Upstream."""
    differences: dict[Row, RowDifference] = field(default_factory=dict)
    """By the row's key; without a key by the row."""
    unlisted: int = 0
    """Rows in ranges that differ, behind the differences that are listed."""

    @property
    def is_full(self) -> bool:
        """Whether no more differences are listed."""
        return len(self.differences) >= MOST_LISTED

    @property
    def differing(self) -> int:
        """Rows that differ; of ranges that are not listed, all of them."""
        return sum(d.times for d in self.differences.values()) + self.unlisted

    @property
    def equal(self) -> int:
        """Rows of the upstream that the target has as they are; none of the ranges that are not listed."""
        return max(self.rows - sum(d.times for d in self.differences.values() if d.kind is not Kind.EXTRA) - self.unlisted, 0)

    @property
    def listed(self) -> list[RowDifference]:
        """The differences, those first whose rows are in the way of others."""
        return by_kind(self.differences.values())

    def take(self, row: Row, difference: RowDifference) -> None:
        """List a difference, or count its rows where the list is full. ``row``: see ``differences``."""
        if self.is_full:
            self.unlisted += difference.times
        else:
            self.differences[row] = difference

    def add(self, other: "Tally") -> None:
        """Take in another part of the table."""
        self.rows += other.rows
        self.unlisted += other.unlisted
        self.differences |= other.differences


def boundary(session: Session, side: TableSide, within: KeyRange, behind: int) -> Key:
    """The key that has ``behind`` rows of the range before it; empty: there are no more rows."""
    assert side.handle is not None
    with unlocked(session), session.stream(side.boundary_sql(within, behind)) as blocks:
        found = [key for block in blocks for key in zip(*map(whole, cells_of(side.handle.forms, block)), strict=True)]
    return found[0] if found else ()


@dataclass(frozen=True, slots=True)
class TableReader:
    """One table, read by one reader of each side."""

    pair: TablePair
    readers: SidePair

    def compare_range(self, within: KeyRange, tally: Tally) -> None:
        """Compare the rows of a range of the key."""
        both = self._sums(within)
        tally.rows += both[0].rows
        self._halve(within, both, tally, 0)

    def compare_keys(self, keys: Collection[Row], tally: Tally) -> None:
        """Compare the rows that have these keys, on either side. A server may find others for them, by its collation: they have keys of their own."""
        tally.rows += len(keys)
        seen = set[Row]()
        for by, (session, side) in enumerate(self._sides()):
            shown = {
                key: row for row in _read(session, lookup_sql(self.pair, side, keys)) if (key := identity_of(self.pair, row)) not in seen
            }
            self._compare_rows(shown, self._with_keys_of(shown, *self._sides()[1 - by]), tally, by)
            seen |= shown.keys()

    def compare_all(self, tally: Tally) -> None:
        """Compare all rows, of which equal ones are counted."""
        if self.pair.upstream.sums:
            upstream, target = self._sums(EVERYTHING)
            if upstream == target:
                tally.rows += upstream.rows
                return
        upstream_sums, target_sums = (self._buckets(session, side) for session, side in self._sides())
        tally.rows += upstream_sums.rows
        among, unlisted = upstream_sums.within_room(target_sums)
        tally.unlisted += unlisted
        if len(among):
            wanted, found = (self._counted(session, side, among) for session, side in self._sides())
            for difference in counted(self.pair, wanted, found):
                tally.take(difference.row, difference)

    def _sides(self) -> tuple[tuple[Session, TableSide], ...]:
        return (self.readers.upstream, self.pair.upstream), (self.readers.target, self.pair.target)

    def _sums(self, within: KeyRange) -> tuple[RangeSum, RangeSum]:
        sides = self._sides()
        if self.pair.upstream.sums and self.pair.target.sums:
            summed = [_sum(session, side, within) for session, side in sides]
            # A row that is larger than a server's max_allowed_packet has no hash there.
            if all(total.rows == total.total // COUNTED for total in summed):
                return summed[0], summed[1]
        upstream, target = (self._summed_here(session, side, within) for session, side in sides)
        return upstream, target

    def _halve(self, within: KeyRange, sums: tuple[RangeSum, RangeSum], tally: Tally, by: int) -> None:
        """Find what differs in a range. ``by``: the side whose rows are halved, the upstream's (0) and then the target's (1): each of these ends."""
        if sums[0] == sums[1]:
            return
        session, side = self._sides()[by]
        if tally.is_full:
            # The upstream's rows of this range are listed where the target's are halved.
            tally.unlisted += max(sums[1].rows - by * sums[0].rows, (1 - by) * sums[0].rows)
        elif sums[by].rows > _FEW and (middle := boundary(session, side, within, sums[by].rows // 2)) not in ((), within.begin):
            left = self._sums(KeyRange("", within.begin, middle))
            self._halve(KeyRange("", within.begin, middle), left, tally, by)
            self._halve(KeyRange("", middle, within.end), (sums[0] - left[0], sums[1] - left[1]), tally, by)
        else:
            shown = {identity_of(self.pair, row): row for row in _read(session, side.rows_sql(within))}
            self._compare_rows(shown, self._with_keys_of(shown, *self._sides()[1 - by]), tally, by)
            if by == 0:
                self._halve(within, sums, tally, 1)

    # Rows.

    def _compare_rows(self, shown: dict[Row, Row], others: dict[Row, Row], tally: Tally, by: int) -> None:
        for key, row in shown.items():
            wanted, found = (row, others.get(key)) if by == 0 else (others.get(key), row)
            if (difference := compared(self.pair, wanted, found)) is not None:
                tally.differences[key] = difference

    def _with_keys_of(self, rows: dict[Row, Row], session: Session, side: TableSide) -> dict[Row, Row]:
        """The rows of the other side with the same keys, in whichever range that side has them."""
        if not rows:
            return {}
        return {identity_of(self.pair, row): row for row in _read(session, lookup_sql(self.pair, side, rows.keys()))}

    # Sums of rows that a server cannot make.

    def _summed_here(self, session: Session, side: TableSide, within: KeyRange) -> RangeSum:
        rows = total = 0
        for _, hashes in self._hashed(session, side.rows_sql(within)):
            # The sum of a range may be subtracted from another one, so it does not wrap.
            rows, total = rows + len(hashes), total + (int((hashes >> _HALF).sum()) << 32) + int((hashes & _LOW).sum())
        return RangeSum(rows, total)

    def _buckets(self, session: Session, side: TableSide) -> Buckets:
        found = Buckets()
        for _, hashes in self._hashed(session, side.rows_sql(EVERYTHING)):
            found.add(hashes, hashes)
        return found

    def _counted(self, session: Session, side: TableSide, among: Any) -> Counter[Row]:
        """How often each row of some buckets is there."""
        found = Counter[Row]()
        for block, hashes in self._hashed(session, side.rows_sql(EVERYTHING)):
            chosen = pa.array(np.isin(buckets_of(hashes), among))
            found.update(zip(*(column.filter(chosen).to_pylist() for column in block), strict=True))
        return found

    def _hashed(self, session: Session, sql: bytes) -> Iterator[tuple[Columns, Any]]:
        """The rows of an answer, some at a time, and the hash of each row's canonical form."""
        forms = [column.form for column in self.pair.columns]
        with unlocked(session), session.stream(sql) as blocks:
            for block in blocks:
                yield block, hashes_of([shortened(_canonical_cells(*one)) for one in zip(forms, block, strict=True)])


def _canonical_cells(form: Form, cells: pa.BinaryArray) -> pa.BinaryArray:
    return cells if form.in_sql else pa.array([canonical(form, value) for value in cells.to_pylist()], pa.binary())


def rows_of(session: Session, sql: bytes) -> Iterator[Row]:
    """The rows of an answer, each value as ``read_as`` has it."""
    with session.stream(sql) as blocks:
        for block in blocks:
            yield from zip(*(column.to_pylist() for column in block), strict=True)


def _read(session: Session, sql: bytes) -> Iterator[Row]:
    with unlocked(session):
        yield from rows_of(session, sql)


def _sum(session: Session, side: TableSide, within: KeyRange) -> RangeSum:
    with unlocked(session):
        ((rows, total),) = session.query(side.sums_sql(within))
    return RangeSum(int(rows), int(total or 0))
