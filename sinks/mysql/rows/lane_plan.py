"""Assigns row operations to lanes and rounds; a plan is recognised again after a crash. Pure."""

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from pyspark_tidb_binlog.sinks.engine.causality import Conflict, OpKeys, Schedule, schedule
from pyspark_tidb_binlog.sinks.engine.row_ops import RowBatch
from pyspark_tidb_binlog.sinks.mysql.record import OpenLanes


@dataclass(frozen=True, slots=True)
class SpanPlace:
    """Where one of several plans stands in its span."""

    before: int = 0
    """How many operations of the span come before its own."""
    upto: int = 0
    """How many there are with its own."""
    contents: bytes = b""
    """A digest of the operations, where commit_ts and places do not identify them; empty: they do."""

    def behind(self, batch: RowBatch) -> "SpanPlace":
        """The place of the plan of ``batch``, which follows that of this place."""
        digest = hashlib.blake2b(self.contents, digest_size=16)
        for piece in batch.pieces:
            for images in (piece.old, piece.new):
                if images is not None:
                    digest.update(images.serialize())
        return SpanPlace(self.upto, self.upto + len(batch), digest.digest())


AT_ITS_BEGIN = SpanPlace()


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
    def of(
        cls, batch: RowBatch, keys: OpKeys, lanes: int, conflict: Conflict, run: int, place: SpanPlace = AT_ITS_BEGIN, *, safe: bool
    ) -> "LanePlan":
        """The plan of a span that begins now; ``run`` as for ``schedule``."""
        made = schedule(keys, lanes, conflict, run)
        where = f"-{place.before}" if place.before else ""
        return cls(made, lanes, f"{conflict}-{run}-{_fingerprint(batch, made, place)}{where}", safe)

    @classmethod
    def again(cls, batch: RowBatch, keys: OpKeys, left: OpenLanes, place: SpanPlace = AT_ITS_BEGIN) -> "LanePlan | None":
        """The plan of a span that was begun; None if these are not its operations."""
        conflict, _, rest = left.plan.partition("-")
        run = rest.partition("-")[0]
        if conflict not in set(Conflict) or not run.isdigit():
            return None
        plan = cls.of(batch, keys, len(left.done), Conflict(conflict), int(run), place, safe=left.safe)
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


def operations_before(plan: str) -> int:
    """How many operations of its span come before those of a recorded plan (``SpanPlace.before``)."""
    parts = plan.split("-")
    return int(parts[3]) if len(parts) == 4 and parts[0] in set(Conflict) and parts[3].isdigit() else 0


def _fingerprint(batch: RowBatch, made: Schedule, place: SpanPlace) -> str:
    digest = hashlib.blake2b(place.contents, digest_size=12)
    for numbers in (batch.commit_ts, made.lanes, made.rounds):
        digest.update(np.ascontiguousarray(numbers, dtype="<i8").tobytes())
    for piece in batch.pieces:
        digest.update(f"{piece.table.schema}.{piece.table.name} {int(piece.op)}".encode())
        digest.update(np.ascontiguousarray(piece.places, dtype="<i8").tobytes())
    return digest.hexdigest()
