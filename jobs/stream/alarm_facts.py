"""What a stream's progress says to the alarms. Pure."""

from pyspark_tidb_binlog.jobs.stream.report import Progress, SeenPump
from pyspark_tidb_binlog.schemas.alarms import ONLINE, Facts, PumpFacts

_BETWEEN = ("", "source", "pair")
"""``held_stage`` between two batches."""


def facts_of(progress: Progress) -> Facts:
    """The facts of a Drainer that answers. Others, such as rights and disks, are not in its progress."""
    begun = progress.resolved_ts > 0 and not progress.bootstrap
    asked = progress.state == ONLINE and progress.held_stage in _BETWEEN
    return Facts(
        drainer="",
        state=progress.state,
        copying=progress.bootstrap,
        lag_seconds=progress.lag_seconds if begun else None,
        still_seconds=progress.still_seconds,
        holding=progress.holding,
        waiting=progress.stalled,
        unrecorded=progress.unrecorded,
        pumps=tuple(_pump(seen, asked=asked) for seen in progress.pumps) or None,
        findings=progress.findings,
        newest_finding=progress.newest_findings[-1] if progress.newest_findings else "",
    )


def _pump(seen: SeenPump, *, asked: bool) -> PumpFacts:
    """``asked``: whether the source reports its Pumps now. A paused one does not, and while a batch is applied, what they have is that of its beginning."""
    return PumpFacts(seen.name, seen.state, seen.trouble, seen.lag_seconds if seen.read_upto and asked else None)
