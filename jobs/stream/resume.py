"""Where a stream resumes: the target's own checkpoint row comes first; positions of Spark and Delta count only for the same target. Pure.

Promises: an emptied, rebuilt or replaced target never counts as caught up, and a position of another target is never used silently. If two
interpretations are possible, the start is refused; the error names both and what to do for each. A checkpoint without an identity (an older release) is
accepted once, if the target has its row, and then belongs to this target.

| target's row | Spark's checkpoint | Delta's rows | the stream |
|---|---|---|---|
| there | none, this target's, or without identity | any | resumes from the row |
| there | ahead of the row, but noted that nothing was to be applied | any | resumes from Spark's position |
| there | another target's, or ahead of the row | any | refused |
| missing | any | any | refused |
| missing | none | this target's | resumes from Delta's newest row |
| missing | none | only of others | starts from the settings if they name a ts, else refused |
| missing | none | none | starts from the settings |
"""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Self

from pyspark_tidb_binlog.binlog_source.source.offset import from_json
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.sinks.engine.batch import gap_text

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TargetWords:
    """The words of messages for a target and its record."""

    where: str
    home: str
    """The place of the record. A target whose place was made again is another target."""
    leftovers: str
    """What must not exist before an empty target is filled."""
    by_hand: str
    """How a commit_ts, ``TS``, is recorded by hand."""


@dataclass(frozen=True, slots=True)
class ResumeState:
    """What determines where to resume, named as in the settings."""

    target: TargetWords
    cluster_id: int
    checkpoint_dir: str
    delta_dir: str
    starting_commit_ts: int
    """The setting: -1 = now."""


def check_spark(places: ResumeState, kept_for: str | None, target: str, commit_ts: int | None) -> None:
    """Check that Spark's checkpoint may be used.

    Args:
        places: for the messages.
        kept_for: identity of the target that it belongs to; None = no checkpoint.
        target: identity of the target.
        commit_ts: that of its row; None = it has none.

    Raises:
        ConfigError: it belongs to another target, or the target has no row.
    """
    if kept_for is None:
        return
    if commit_ts is None:
        raise ConfigError(
            f"the target {places.target.where} has no checkpoint of cluster {places.cluster_id}, but Spark's checkpoint {places.checkpoint_dir} shows that this "
            f"stream has run: the target was rebuilt or emptied, its row was deleted, or syncer.to names another target. Choose: {_both(places, with_spark=True)}"
        )
    if kept_for != target:
        raise ConfigError(
            f"Spark's checkpoint {places.checkpoint_dir} belongs to another target than {places.target.where}, or to this target before its "
            f"{places.target.home} was rebuilt. If syncer.to is right, delete the directory {places.checkpoint_dir}: the stream then resumes from "
            f"this target's own row, {commit_ts} ({as_time(commit_ts)})"
        )


def committed_ts(commits: Sequence[str], offset_of: Callable[[str], str | None]) -> int:
    """The resolved_ts up to which Spark considers batches done; 0 = there is none, or it is unknown.

    Args:
        commits: names of the files in ``commits`` of Spark's checkpoint, one per batch.
        offset_of: the text of the file of that name in ``offsets``: a version, metadata, and one offset per source, a line each.
    """
    newest = max((int(name) for name in commits if name.isdigit()), default=-1)
    text = offset_of(str(newest)) if newest >= 0 else None
    last = (text or "").splitlines()[-1:]
    try:
        return from_json(json.loads(last[0])).resolved_ts if last else 0
    except (ValueError, ConfigError):
        return 0  # "-": nothing was read yet; an offset of another version is refused by the source itself


@dataclass(frozen=True, slots=True)
class NothingApplied:
    """A note that a target with record ``recorded_ts`` has everything up to ``upto_ts``: there was nothing to apply in between."""

    target: str
    """Its identity."""
    recorded_ts: int
    upto_ts: int

    def to_json(self) -> str:
        """As it is kept beside Spark's checkpoint."""
        return json.dumps({"version": 1, **asdict(self)})

    @classmethod
    def from_json(cls, text: str | None) -> Self | None:
        """None also for a damaged note, or one of another version."""
        try:
            found = json.loads(text or "")
            return cls(found["target"], found["recorded_ts"], found["upto_ts"]) if found["version"] == 1 else None
        except (ValueError, KeyError, TypeError):
            return None

    def covers(self, target: str, commit_ts: int, spark_ts: int) -> bool:
        """Whether ``target``, whose row says ``commit_ts``, has all up to ``spark_ts``."""
        return self.target == target and self.recorded_ts == commit_ts < spark_ts <= self.upto_ts


def check_no_gap(places: ResumeState, spark_ts: int, commit_ts: int) -> None:
    """Check that the target has everything that Spark considers done: a stream without new binlogs would not notice a gap.

    Raises:
        ApplyError: it does not.
    """
    if spark_ts > commit_ts:
        raise ApplyError(gap_text(spark_ts, commit_ts, places.checkpoint_dir))


def first_ts(places: ResumeState, of_target: int | None, of_others: int | None) -> int:
    """Where the stream of a target without a row begins, when Spark has no checkpoint either; -1 = now.

    Args:
        places: for the messages.
        of_target: the newest resolved_ts of this target in the Delta table; None = it has no row.
        of_others: that of any other target, or of a release without identities.

    Raises:
        ConfigError: Delta's rows are of another target, and the settings do not say where to begin.
    """
    if of_target is not None:
        _log.warning("the target has no checkpoint row; using Delta's newest row of this target, %d", of_target)
        return of_target
    if of_others is not None and places.starting_commit_ts < 0:
        raise ConfigError(
            f"the target {places.target.where} has no checkpoint of cluster {places.cluster_id}, and the rows of the Delta table {places.delta_dir}, up to "
            f"{of_others} ({as_time(of_others)}), are of another target or of this one before it was rebuilt. Choose: {_both(places, with_spark=False)}"
        )
    return places.starting_commit_ts


def start_ignored(places: ResumeState, commit_ts: int) -> str:
    """Says that the target's checkpoint ``commit_ts`` counts, not the settings, and how to begin anew; empty: the settings name no other position."""
    if places.starting_commit_ts in (-1, commit_ts):
        return ""
    return (
        f"the stream resumes from the checkpoint of {places.target.where}, {commit_ts} ({as_time(commit_ts)}), not from initial-commit-ts = "
        f"{places.starting_commit_ts}: that setting counts only for a target without a checkpoint, and an earlier start has recorded one. To begin anew, "
        f"stop the Drainer, remove the replicated tables, the {places.target.home} and the directory {places.checkpoint_dir}, and start again"
    )


def _both(places: ResumeState, *, with_spark: bool) -> str:
    spark = f"delete {places.checkpoint_dir} and " if with_spark else ""
    return (
        f"(1) the target is empty, to be filled from the binlogs: check that {places.target.leftovers}, "
        f"{spark}set initial-commit-ts to the first position to read (0 = the beginning); "
        f"(2) the target already has all data up to some TS, from a dump or a backup: {spark}record that TS: {places.target.by_hand}"
    )
