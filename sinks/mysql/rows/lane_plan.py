"""Assigns row operations to lanes and rounds; a plan is recognised again after a crash. Pure."""

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from pyspark_tidb_binlog.sinks.engine.causality import Conflict, OpKeys, Schedule, schedule
from pyspark_tidb_binlog.sinks.engine.row_ops import RowBatch
from pyspark_tidb_binlog.sinks.mysql.state_table import OpenLanes


@dataclass(frozen=True, slots=True, eq=False)
class LanePlan:
    """Which lane applies which operations, and when."""

    schedule: Schedule
    lanes: int
    text: str
    """How it was made, and a fingerprint of the operations and of their lanes and rounds."""
    safe: bool
    done: tuple[int, ...] | None = None
    """How many operations each lane has done already; None: the plan is a new one."""

    @classmethod
    def of(cls, batch: RowBatch, keys: OpKeys, lanes: int, conflict: Conflict, run: int, *, safe: bool) -> "LanePlan":
        """The plan of a span that begins now; ``run`` as for ``schedule``."""
        made = schedule(keys, lanes, conflict, run)
        return cls(made, lanes, f"{conflict}-{run}-{_fingerprint(batch, made)}", safe)

    @classmethod
    def again(cls, batch: RowBatch, keys: OpKeys, left: OpenLanes) -> "LanePlan | None":
        """The plan of a span that was begun; None if these are not its operations."""
        conflict, _, rest = left.plan.partition("-")
        run = rest.partition("-")[0]
        if conflict not in set(Conflict) or not run.isdigit():
            return None
        plan = cls.of(batch, keys, len(left.done), Conflict(conflict), int(run), safe=left.safe)
        return replace(plan, done=left.done) if plan.text == left.plan else None

    def ends(self) -> tuple[int, ...]:
        """How many operations each lane has done in the end."""
        return tuple(np.bincount(self.schedule.lanes, minlength=self.lanes).tolist())

    def rounds(self) -> list[dict[int, list[int]]]:
        """The operations of each lane in each round, in order."""
        found: list[dict[int, list[int]]] = []
        numbers, lanes = self.schedule.rounds, self.schedule.lanes
        ends = [*self.schedule.flushed_before, len(numbers)]
        begin = 0
        for end in ends:
            here = lanes[begin:end]
            found.append({int(lane): (np.flatnonzero(here == lane) + begin).tolist() for lane in np.unique(here)})
            begin = end
        return found


def _fingerprint(batch: RowBatch, made: Schedule) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for numbers in (batch.commit_ts, made.lanes, made.rounds):
        digest.update(np.ascontiguousarray(numbers, dtype="<i8").tobytes())
    for piece in batch.pieces:
        digest.update(f"{piece.table.schema}.{piece.table.name} {int(piece.op)}".encode())
        digest.update(np.ascontiguousarray(piece.places, dtype="<i8").tobytes())
    return digest.hexdigest()
