"""Applies a file sink's binlogs to a MySQL-protocol target, as Reparo does (drainer.md 14). [db]

    binlogs, in the order of commit_ts -> records -> ``FileReplay``, chunks of ``txn-batch`` * ``worker-count`` operations

Promises, besides those of ``FileReplay``:

* One replay writes at a time: every transaction checks the lease of ``CLUSTER`` in ``tidb_binlog.spark_lease``.
* There is no checkpoint, but ``spark_state`` records, in the transactions of the rows, where a replay is (``ReplayPlace``). A replay that
  begins there, with the same record, continues exactly there, keyless rows included. Any other beginning is refused without safe mode.
* When a range is finished, its end stays recorded. Without safe mode a later range begins behind that end.
* In safe mode a range may begin earlier. Until it has passed what the earlier replay had applied, the record says that a part may be in the target, and only
  safe mode may go on from it.
* A DDL that an interrupted replay had begun is executed again. A DDL that would undo itself (EXCHANGE PARTITION, names that change places) is left to
  a person.
"""

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError, DdlRefused, LeaseHeld
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.proto import pb_binlog_pb2 as pb
from pyspark_tidb_binlog.sinks.mysql.lease_guard import LeasedTarget
from pyspark_tidb_binlog.sinks.mysql.retry_policy import RetryPolicy
from pyspark_tidb_binlog.sinks.mysql.session import connect
from pyspark_tidb_binlog.sinks.mysql.state_table import TABLE, StateTable
from pyspark_tidb_binlog.sinks.replay.file_records import FileDdl, FileRecord, FileRows, of_file_sink
from pyspark_tidb_binlog.sinks.replay.file_replay import FileReplay, Replayed, ReplaySource
from pyspark_tidb_binlog.sinks.replay.repeated import undoes_itself
from pyspark_tidb_binlog.sinks.replay.replay_record import PlaceKind, ReplayPlace, ReplayRecord
from pyspark_tidb_binlog.sinks.translate.column_values import ReadBack

_log = logging.getLogger(__name__)

CLUSTER = 0
"""The cluster id of a replay's lease and record: no cluster has it."""
_SOURCE = ReplaySource(
    "the directory of binlogs",
    "leave the table out with [[replicate-ignore-table]]",
    "leave its table out with [[replicate-ignore-table]]. Or replay up to this transaction and then behind it: -safe-mode -stop-tso {before}, "
    "then -safe-mode -start-tso {behind}",
)
_AGAIN = "Start the replay again with the same options. If the target has no record, start it from the beginning with -safe-mode"


class MySQLReplay(ReplayRecord):
    """One target, to which the binlogs of one range are applied, and the record of where the replay is."""

    def __init__(
        self, target: TargetConfig, apply: ApplyConfig, after_ts: int, how: ReadBack, pause: Callable[[float], None] = time.sleep
    ) -> None:
        """Does not access the target. ``after_ts``: the range begins behind it."""
        leased = LeasedTarget(lambda: connect(target, apply), apply, RetryPolicy(seconds=apply.retry_seconds, pause=pause))
        super().__init__(leased, StateTable(apply.checkpoint_schema, CLUSTER), _AGAIN, safe=apply.safe_mode)
        self._after_ts = after_ts
        self._replay = FileReplay(leased, target, apply, _SOURCE, how, apply.txn_batch * apply.worker_count)
        self._open_upto = 0
        """Up to here an earlier replay may have applied something."""

    @property
    def done(self) -> Replayed:
        """What was done."""
        return self._replay.done

    def take_all(self, binlogs: Iterable[pb.Binlog]) -> None:
        """Apply ``binlogs``.

        Raises:
            LeaseHeld: another replay writes to this target.
            Corruption: a binlog is damaged; nothing from it on was applied.
            ApplyError: the target refuses something, or a replay before has left a span open and this is not in safe mode.
        """
        self._start()
        records = self._replay.each_once(map(of_file_sink, binlogs))
        self._replay.run(self._behind_left(records), self._after_ts, self)
        self._finish()

    def close(self) -> None:
        """Release the lease; safe to call twice."""
        self._replay.close()
        self._leased.close()

    @property
    def standing(self) -> str:
        """Where the replay is, and how to go on from there."""
        if self._held is None:
            return "nothing was applied"
        after_ts = self._held.after_ts
        return (
            f"everything of the range up to commit_ts {after_ts} ({as_time(after_ts)}) is in the target. To continue: -start-tso {after_ts + 1}. "
            "With the same files and filters the replay continues exactly where this one stopped. Otherwise add -safe-mode"
        )

    # The range.

    def _start(self) -> None:
        try:
            self._leased.take(CLUSTER)
        except LeaseHeld as error:
            raise LeaseHeld(f"another replay writes to this target, but only one replay may write at a time: {error}") from error
        for attempt in self._leased.retrying():
            with attempt, self._leased.session(attempt) as session:
                self._table.create(session)
                left = ReplayPlace.read(self._table.read(session))
        if left is not None and left.kind is not PlaceKind.REST and not left.done and left.commit_ts <= self._after_ts:
            left = self._passed(left)
        self._left, self._open_upto = left, left.upto_ts if left is not None else 0
        if left is None or left.after_ts >= self._after_ts:
            return
        # Of a transaction that is open a part is in the target: it is brought to an end. The rest of a span is as whoever chose its ends wants it.
        if left.kind is not PlaceKind.REST or not self.safe:
            raise self._open_span(left, f"this range begins only behind {self._after_ts}")
        _log.warning(
            "a part of (%d, %d] may be in the target, but this range begins only behind %d: the changes of that span before this range stay as they are",
            left.after_ts,
            left.upto_ts,
            self._after_ts,
        )

    def _passed(self, left: ReplayPlace) -> ReplayPlace | None:
        """What is left behind a DDL, or a transaction of which nothing is in the target: this range begins after it."""
        if left.kind in (PlaceKind.DDL, PlaceKind.REFUSED):
            _log.warning(
                "the DDL of commit_ts %d, at which an earlier replay stopped, is not executed: this range begins after it", left.commit_ts
            )
        return _rest(left.commit_ts, left.upto_ts) if left.upto_ts > self._after_ts else None

    def _behind_left(self, records: Iterator[FileRecord]) -> Iterator[FileRecord]:
        """What is to be applied: from the place on at which an earlier replay stopped.

        Raises:
            ApplyError: the records do not begin there, and safe mode is off.
        """
        left = self._left
        if left is None:
            yield from records
            return
        exact = not left.safe and left.after_ts == self._after_ts
        if exact and left.kind is not PlaceKind.ROWS:
            # A DDL may share its commit_ts with records before it, which are in the target.
            records = itertools.dropwhile(lambda r: r.commit_ts == left.commit_ts and not left.is_at(r), records)
        first = next(records, None)
        if first is None:
            return
        if exact and left.is_at(first):
            self._held, self._open_upto = left, 0
            if isinstance(first, FileRows):
                _log.warning("the replay continues exactly where an earlier replay stopped, within (%d, %d]", left.after_ts, left.upto_ts)
                first = replace(first, done=left.done)
        elif not self.safe:
            raise self._open_span(left, "this range does not continue from there")
        yield first
        yield from records

    def _finish(self) -> None:
        """Record the end of the range, unless it holds nothing."""
        if self._held is None:
            if self._left is not None and not self.safe:
                raise self._open_span(self._left, "this range holds nothing of that span")
            return
        last_ts = self._replay.last_ts
        if self._open_upto <= last_ts:
            self._save(ReplayPlace(last_ts, last_ts, PlaceKind.ENDED, last_ts))
            return
        self._save(_rest(last_ts, self._open_upto))
        _log.warning("the range ends at %d, within a span that an earlier replay began, up to %d", last_ts, self._open_upto)

    def _open_span(self, left: ReplayPlace, why: str) -> ApplyError:
        how = "with the files and filters of that replay, or with -safe-mode from there"
        what = f"within ({left.after_ts}, {left.upto_ts}] ({as_time(left.upto_ts)}): a part of that span is in the target"
        if left.safe:
            how = "and -safe-mode"
            if left.kind is PlaceKind.REST:
                how += ". Or begin behind the span, with -safe-mode, if the rows of the span are as you want them"
        elif left.kind is PlaceKind.ENDED:
            what = f"at the end of its range, {left.commit_ts} ({as_time(left.commit_ts)})"
            how = "or this range with -safe-mode, or without the record if it has other tables"
        elif left.kind is not PlaceKind.ROWS:
            what = f"at the DDL of commit_ts {left.commit_ts} ({as_time(left.commit_ts)}): everything before it is in the target"
        return ApplyError(
            f"an earlier replay stopped {what}, and {why}. "
            f"To continue: -start-tso {left.after_ts + 1}, {how}. "
            f"If the target was emptied or restored since, delete the record: DELETE FROM {self._table.schema}.{TABLE} WHERE cluster_id = {CLUSTER}"
        )

    # The record.

    def as_recorded(self, place: ReplayPlace) -> ReplayPlace:
        """``place`` with what an earlier replay may have applied behind it: of the transaction at which it stopped, more than is done here."""
        in_doubt = place.commit_ts < self._open_upto or (place.kind is PlaceKind.ROWS and place.commit_ts == self._open_upto)
        return replace(place, upto_ts=max(place.commit_ts, self._open_upto), safe=in_doubt)

    def begin_ddl(self, ddl: FileDdl, after_ts: int, kind: PlaceKind = PlaceKind.DDL) -> bool:
        """Record that a DDL is begun (``ReplayRecord.begin_ddl``)."""
        if not super().begin_ddl(ddl, after_ts, kind):
            return False
        # A range in safe mode may have begun before it, also because the target was made anew.
        left = self._left
        if left is not None and left.is_at(ddl) and left.kind is not PlaceKind.REFUSED and undoes_itself(ddl.statement):
            raise self.left_to_a_person(ddl, "it was being executed when an earlier replay ended, and executing it again would undo it")
        return True

    def refused(self, ddl: FileDdl, error: ApplyError) -> DdlRefused:
        """Record that the DDL was not executed, if the target itself says so (``ReplayRecord.refused``)."""
        if error.errno and self._held is not None:
            self._save(replace(self._held, kind=PlaceKind.REFUSED))
        return DdlRefused(
            f"the target refuses the DDL of commit_ts {ddl.commit_ts} ({as_time(ddl.commit_ts)}): {error}. Execute it by hand in a form that the "
            f"target accepts, and go on with -start-tso {ddl.commit_ts + 1}",
            error.errno,
            error.words,
        )

    def left_to_a_person(self, ddl: FileDdl, why: str) -> DdlRefused:
        """What a person has to do (``ReplayRecord.left_to_a_person``)."""
        return DdlRefused(
            f"the DDL of commit_ts {ddl.commit_ts} ({as_time(ddl.commit_ts)}) was executed, or may have been: {why}: {ddl.statement}. Look at its "
            f"tables. If it was not executed, execute it by hand. Then go on with -start-tso {ddl.commit_ts + 1}"
        )


def _rest(after_ts: int, upto_ts: int) -> ReplayPlace:
    """Behind ``after_ts`` a part of what follows may be in the target."""
    return ReplayPlace(after_ts, upto_ts, PlaceKind.REST, after_ts, safe=True)
