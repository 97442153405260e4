"""What a soak measures, and what counts as flat.

Promises: pure. A bound follows from what the settings allow, or is the value at the start plus a slack that a leak over weeks would exceed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyspark_tidb_binlog.sinks.delta.appended_table import MOST_FILES, vacuum_every
from pyspark_tidb_binlog.sinks.delta.checkpoint_table import COMMIT_SECONDS

MIB = 1 << 20

Look = Mapping[str, float]
"""What was measured at one moment: name -> value. Names end in their unit: ``MiB``, ``files``, ``rows``, ``threads``, ``open``."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """The bound of the value at the end: ``times`` the value at the start plus ``more``."""

    times: float
    more: float

    def most(self, start: float) -> float:
        """The bound."""
        return self.times * start + self.more


@dataclass(frozen=True, slots=True)
class Verdict:
    """One measurement and its bound."""

    name: str
    start: float
    end: float
    most: float | None
    """None: printed only."""

    @property
    def flat(self) -> bool:
        """Whether the end is within the bound."""
        return self.most is None or self.end <= self.most

    def __str__(self) -> str:
        """A line of the table."""
        bound = "" if self.most is None else f"bound {self.most:>10,.1f}  {'flat' if self.flat else 'NOT FLAT'}"
        return f"  {self.name:<42} {self.start:>10,.1f} {self.end:>10,.1f}  {bound}".rstrip()


def allowed(retention: float) -> Mapping[str, Allowed]:
    """The bounds of a soak with this ``delta-retention``, in seconds, by the prefix of a measurement's name; one without a bound is only printed."""
    # Files that are not joined yet, those that were joined last, and those made until VACUUM removes these.
    delta_files = 2 * MOST_FILES + (retention + vacuum_every(retention)) / COMMIT_SECONDS
    # What the log keeps goes at every hundredth version, up to the checkpoint before.
    log_files = 1.2 * (200 + retention / COMMIT_SECONDS) + 40
    return {
        "JVM heap after GC": Allowed(1.2, 48),
        "JVM PSS": Allowed(1.25, 128),
        "JVM open": Allowed(1.0, 100),
        "JVM threads": Allowed(1.0, 50),
        "Python PSS": Allowed(1.25, 96),
        "Python open": Allowed(1.0, 50),
        "Python threads": Allowed(1.0, 20),
        # State is purged once a minute: at most two minutes of it, plus the retained batches.
        "checkpoint-dir files": Allowed(2.5, 300),
        "checkpoint-dir MiB": Allowed(2.5, 64),
        "spark.local.dir files": Allowed(2.0, 1000),
        "spark.local.dir MiB": Allowed(2.0, 128),
        "delta-dir data files": Allowed(0.0, delta_files),
        "delta-dir findings files": Allowed(0.0, delta_files),
        "delta-dir log files": Allowed(0.0, log_files),
        "tidb_binlog.checkpoint rows": Allowed(1.0, 0),
        "tidb_binlog.spark_lease rows": Allowed(1.0, 0),
        "tidb_binlog.spark_state rows": Allowed(1.0, 20),
    }


def verdicts(start: Look, end: Look, bounds: Mapping[str, Allowed]) -> Iterator[Verdict]:
    """Each measurement of either moment with its bound."""
    for name in dict.fromkeys((*start, *end)):
        bound = next((bounds[key] for key in bounds if name.startswith(key)), None)
        before = start.get(name, 0.0)
        yield Verdict(name, before, end.get(name, 0.0), bound.most(before) if bound else None)
