"""Makes rows of the target right, between two batches of the Drainer. [db]

    lease row    locked: no transaction of the stream is open, and none begins (``Readers.holding``)
    record       S: the target is the upstream at S. Another list of DDLs than at the comparison: nothing is repaired
    rows         locked and read at the target, and read upstream at S. What differs is found from these rows alone
    statements   executed as the Drainer's own session would. Then the rows are read again
    COMMIT       if they are right. Otherwise ROLLBACK, and all of it again without the rows that are not

Promises: a row is written only if it differs at S while the transaction has it, whatever was seen before, and is committed only if it is the upstream's then. A crash
leaves each row as it was, or right. Neither the record nor the checkpoint changes. The stream waits for one transaction of at most ``_TOGETHER`` rows.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark_tidb_binlog.schemas.errors import ApplyError, RetryableApplyError
from pyspark_tidb_binlog.sinks.mysql.retry_policy import FEW, retrying
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.verify.repair import Difference, Row, alike_sql, differences, identity_of, lookup_sql
from pyspark_tidb_binlog.sinks.verify.standing import Readers, SidePair, SnapshotRecord
from pyspark_tidb_binlog.sinks.verify.table_comparison import rows_of
from pyspark_tidb_binlog.sinks.verify.table_pair import TablePair, TableSide
from pyspark_tidb_binlog.sinks.verify.verification import VerifiedTable

_log = logging.getLogger(__name__)

_TOGETHER, _KEYLESS_TOGETHER = 100, 10
"""Rows of one transaction. Each statement for a row without a key reads the whole table."""
_LOCK_TIMEOUT = 1205
_LOCK = b" FOR UPDATE"
DDL_RAN = "a DDL ran since the table was compared: verify it again"
ANOTHER_ROW = "the target makes another row of it: a trigger, or a column that does not hold its value"
LOCKED = "another transaction of the target locks the row or the table: end it, and run the command again"


@dataclass(frozen=True, slots=True)
class Unrepaired:
    """A row that still differs."""

    difference: Difference
    why: str


@dataclass(slots=True)
class RepairedTable:
    """The result for one table."""

    ts: int
    """S, the last one of several."""
    repaired: list[Difference] = field(default_factory=list)
    """As executed."""
    right: int = 0
    """Differences whose rows were right already."""
    left: list[Unrepaired] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One transaction."""

    ts: int
    repaired: Sequence[Difference] = ()
    """Empty if some are left: it was rolled back."""
    left: Mapping[Row, str] = field(default_factory=dict)
    """Why, by identity."""


@dataclass(frozen=True, slots=True)
class Repairing:
    """Repairs tables that a verification with the same settings has compared."""

    readers: Readers

    def repair(self, table: VerifiedTable) -> RepairedTable:
        """Make the listed rows right.

        Raises:
            NotUsableYet: the target is not settled for ``standing.SETTLE_SECONDS``.
            ApplyError: a server does not answer, or GC has passed S. What was committed is right.
        """
        assert table.tally is not None
        result, rest = RepairedTable(table.ts), [one for one in table.tally.listed if isinstance(one, Difference)]
        while rest:
            before, result.left = len(rest), []
            together = _TOGETHER if rest[0].pair.key else _KEYLESS_TOGETHER
            for start in range(0, before, together):
                self._group(rest[start : start + together], table.ddls, result)
            # A row may have had a value of another one, which is repaired now.
            rest = [left.difference for left in result.left] if len(result.left) < before else []
        _log.info("%s: %d rows repaired, %d right already, %d left", table.name, len(result.repaired), result.right, len(result.left))
        return result

    def _group(self, group: Sequence[Difference], ddls: tuple[int, int], result: RepairedTable) -> None:
        seen = {difference.identity: difference for difference in group}
        left = dict[Row, str]()
        done = _Attempt(result.ts)
        while rest := {identity: one.row for identity, one in seen.items() if identity not in left}:
            done = self._tried(group[0].pair, rest, ddls)
            if not done.left:
                break
            left |= done.left
        repaired = {difference.identity for difference in done.repaired}
        result.ts = done.ts or result.ts
        result.repaired += done.repaired
        result.right += len(seen) - len(repaired) - len(left)
        result.left += [Unrepaired(seen[identity], why) for identity, why in left.items()]

    def _tried(self, pair: TablePair, rows: Mapping[Row, Row], ddls: tuple[int, int]) -> _Attempt:
        try:
            for attempt in retrying(FEW):
                with attempt, self.readers.holding() as (at, sides):
                    done = _once(at, sides, pair, rows) if at.ddls == ddls else _Attempt(at.ts, left=dict.fromkeys(rows, DDL_RAN))
        except RetryableApplyError as error:
            if error.errno != _LOCK_TIMEOUT:
                raise
            return _Attempt(0, left=dict.fromkeys(rows, LOCKED))
        return done


def _once(at: SnapshotRecord, sides: SidePair, pair: TablePair, rows: Mapping[Row, Row]) -> _Attempt:
    """One transaction. ``rows``: by identity, those to make right; without a key, one of each form."""
    session, ts = sides.target, at.ts
    wanted = _read(sides.upstream, pair, pair.upstream, rows)
    found = differences(pair, wanted, _read(session, pair, pair.target, rows, _LOCK))
    refused = dict[Row, str]()
    for difference in found:
        try:
            for statement in difference.sql(session.flavour):
                session.answer(statement.encode())
        except RetryableApplyError:
            raise
        except ApplyError as error:
            refused[difference.identity] = error.said
    left = {one.identity: ANOTHER_ROW for one in differences(pair, wanted, _read(session, pair, pair.target, rows, _LOCK))}
    if left or refused:
        session.rollback()
        return _Attempt(ts, left=left | refused)
    session.commit()
    return _Attempt(ts, found)


def _read(session: Session, pair: TablePair, side: TableSide, rows: Mapping[Row, Row], lock: bytes = b"") -> Collection[Row]:
    """The rows of one side with these identities."""
    sql = lookup_sql(pair, side, rows) if pair.key else alike_sql(pair, side, rows.values(), session.flavour)
    return [row for row in rows_of(session, sql + lock) if identity_of(pair, row) in rows]
