"""Interprets a target's record when a Drainer starts on it: who wrote the record, and what is in the target beyond it. Pure.

Promises: a checkpoint with ``consistent`` false that is not ours comes from another Drainer that has crashed. A checkpoint of ours is exact, because
its spans are recorded part by part. It is in doubt only where somebody moved it into the middle of a span.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from pyspark_tidb_binlog.schemas.events import as_time, tso
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.mysql.elsewhere import Choice
from pyspark_tidb_binlog.sinks.mysql.state_table import State
from pyspark_tidb_binlog.sinks.sink import TargetProgress

_log = logging.getLogger(__name__)

LEAST_OPEN = tso(3_600_000)
"""Far longer than a real Drainer's checkpoint, which is written every three seconds, trails what it has applied."""


@dataclass(frozen=True, slots=True)
class Found:
    """What is recorded of a target when a Drainer starts."""

    progress: TargetProgress
    """The one that counts."""
    choice: Choice
    """Which of two records it is, where the checkpoint is elsewhere."""
    state: State
    """What the target records beside it."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What a start makes of it."""

    commit_ts: int
    """The stream begins after it."""
    version: int
    """The schema version on the target."""
    safe_until: int
    """The target may have some of what comes up to here, which is applied in safe mode; 0: it has not."""
    why: str
    """In words; empty: an earlier life of this program has said it."""
    moved: bool
    """The checkpoint elsewhere counts: the target's record is set to it."""
    afresh: bool
    """Another program's work, or none, is in the target."""


def opening_of(found: Found, answer: int, history: SchemaHistory, now: Callable[[], int], *, logged: bool) -> Opening:
    """Decide what a start does.

    Args:
        found: what is recorded.
        answer: where the stream would begin: what this Drainer noted as nothing to be applied (``Sink.defer``). It does not end a span that another
            Drainer has begun at the target's checkpoint meanwhile, perhaps with other filters: that span is finished first.
        history: the upstream's DDLs.
        now: the upstream's timestamp of now; asked after a crash only.
        logged: a relay log has all that a crashed Drainer had begun.
    """
    progress, state, choice = found.progress, found.state, found.choice
    begun = progress.unfinished is not None or (progress.known and open_row_by_row(state, progress.commit_ts) > 0)
    commit_ts = progress.commit_ts if begun else answer
    doubt = doubt_of(progress, state, commit_ts)
    if doubt.crashed and logged:
        # All of it is replayed. Its schema-version stays as it is: without the upstream there is no history to look it up in.
        doubt = Doubt(False, True, 0, "", doubt.beyond)
    upto_ts = safe_until(doubt, commit_ts, now()) if doubt.crashed else doubt.upto_ts
    moved = progress.known and not choice.ours
    return Opening(
        commit_ts,
        version_on(progress, history, commit_ts, ours=doubt.ours),
        max(upto_ts, choice.upto_ts, doubt.beyond if choice.upto_ts else 0),
        doubt.why or choice.words,
        moved,
        not progress.known or moved or not doubt.ours,
    )


@dataclass(frozen=True, slots=True)
class Doubt:
    """What may be in the target beyond its checkpoint."""

    crashed: bool
    """Another Drainer has written to it, nobody knows how far."""
    ours: bool
    """Whether this program wrote the checkpoint."""
    upto_ts: int
    why: str
    """In words; empty = nothing is in doubt."""
    beyond: int = 0
    """``State.beyond``: counts where somebody has set the real checkpoint back, which is not in the target."""


def doubt_of(found: TargetProgress, state: State, commit_ts: int) -> Doubt:
    """What of the spans beyond the checkpoint ``found`` may be in the target, which is not known exactly.

    ``state``: what the target records beside the checkpoint; ``commit_ts``: after which the stream begins.
    """
    open_upto, beyond, around = open_row_by_row(state, commit_ts), state.beyond(commit_ts), state.around(commit_ts)
    marked = state.is_ours(found.commit_ts if found.known else commit_ts, consistent=found.consistent)
    ours = bool(found.unfinished or open_upto) or marked
    if found.known and not found.consistent and not ours:
        why = "another Drainer wrote the checkpoint and was not stopped cleanly, so some binlogs after it may be applied"
        return Doubt(True, ours, max(commit_ts, beyond), why, beyond)
    # A checkpoint that was moved back, and says that the target is consistent there, is that of a target that was restored.
    if not around or open_upto:
        return Doubt(False, ours, 0, "", beyond)
    why = f"another Drainer took over within a span that spark_state records as begun, up to {around}"
    return Doubt(False, ours, around, why, beyond)


def open_row_by_row(state: State, commit_ts: int) -> int:
    """The end of the span that was begun row by row at ``commit_ts``, by lanes or by a recovery from the relay log; 0: there is none."""
    lanes = state.lanes_at(commit_ts)
    return lanes.upto_ts if lanes is not None and lanes.after_ts == commit_ts else state.relayed_upto(commit_ts)


def safe_until(doubt: Doubt, commit_ts: int, now_ts: int) -> int:
    """Up to where safe mode goes after another Drainer's crash: ``now_ts``, the upstream's time at this start, is above all that was delivered to it.

    At or below the checkpoint that time is wrong, and ``LEAST_OPEN`` beyond the checkpoint counts instead.
    """
    if now_ts > commit_ts:
        return max(now_ts, doubt.upto_ts)
    _log.warning(
        "the upstream's time, %d (%s), is not after the target's checkpoint %d (%s). Check the clock of the upstream. Safe mode ends an hour after the checkpoint",
        now_ts,
        as_time(now_ts),
        commit_ts,
        as_time(commit_ts),
    )
    return max(commit_ts + LEAST_OPEN, doubt.upto_ts)


def version_on(found: TargetProgress, history: SchemaHistory, commit_ts: int, *, ours: bool) -> int:
    """The schema version on the target. A real Drainer's may be ahead of its commitTS: it counts what rows were written under."""
    at_commit = history.version_at(commit_ts)
    if not found.known:
        return at_commit
    # Also where the stream begins later, because the record was put off: there is no DDL in between.
    if ours and found.schema_version:
        return found.schema_version
    if found.commit_ts != commit_ts:
        return at_commit
    if found.schema_version not in (0, at_commit):
        _log.info("the checkpoint has schema-version %d, but the DDL history has %d at commitTS %d. The version of the history counts",
                  found.schema_version, at_commit, commit_ts)  # fmt: skip
    return at_commit
