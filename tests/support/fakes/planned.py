"""The plans of a part of a span whose statements are given: the same for deletes and writes; nothing is skipped, and no row moves in place."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pyspark_tidb_binlog.sinks.mysql.moves import RowMove
from pyspark_tidb_binlog.sinks.mysql.statements import Statement


@dataclass(frozen=True)
class Planned:
    """Stands for ``parallel._PartPlans``."""

    statements: Iterable[Statement] = ()
    skipped: frozenset[int] = frozenset()

    def deletes(self) -> Iterator[Statement]:
        return iter(self.statements)

    def moves(self) -> Iterator[RowMove]:
        return iter(())

    writes = deletes
