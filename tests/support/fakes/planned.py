"""The plans of a part of a span whose statements are given: the same for deletes and writes; nothing is skipped."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pyspark_tidb_binlog.sinks.mysql.statements import Statement


@dataclass(frozen=True)
class Planned:
    """Stands for ``part_plans.PartPlans``."""

    statements: Iterable[Statement] = ()
    skipped: frozenset[int] = frozenset()

    def deletes(self) -> Iterator[Statement]:
        return iter(self.statements)

    writes = deletes
