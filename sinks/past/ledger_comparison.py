"""Compares the mirrors of a lake with the ledger, without any upstream: each table against what its first load and its row changes make. [spark]

Promises: nothing is written. Rows that the ledger has no change of are the mirror's own (``Lake.rebuilt``), so they are not compared.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.sinks.past.lake_past import Lake
from pyspark_tidb_binlog.sinks.verify.definition import NotCompared
from pyspark_tidb_binlog.sinks.verify.table_comparison import Tally
from pyspark_tidb_binlog.sinks.verify.verification import VerifiedTable, is_named


@dataclass(slots=True)
class LedgerComparison:
    """One run over all tables."""

    lake: Lake
    patterns: Sequence[str] = ()
    """``db.table`` in the lake, with ``*`` and ``?``; none: all tables."""

    def run(self) -> Iterator[VerifiedTable]:
        """Compare each table that a pattern names."""
        for row in self.lake.tables().collect():
            if is_named(name := f"{row['database']}.{row['table']}", self.patterns):
                yield self._verified(name, row["database"], row["table"])

    def _verified(self, name: str, database: str, table: str) -> VerifiedTable:
        try:
            made, missing, more = self.lake.rebuilt_differs(f"{quote_name(database)}.{quote_name(table)}")
        except ConfigError as error:
            return VerifiedTable(name, self.lake.commit_ts, [NotCompared(str(error), by_intent=True)])
        remarks = list[NotCompared]()
        if begin := self.lake.begin_ts:
            words = f"rows that have not changed since {as_time(begin)} ({begin}), because the ledger begins there"
            remarks.append(NotCompared(words, by_intent=True))
        if missing or more:
            words = f"the mirror lacks {missing:,} of the rows that the ledger makes, and has {more:,} others"
            remarks.append(NotCompared(words, by_intent=False, compared=True))
        return VerifiedTable(name, self.lake.commit_ts, remarks, Tally(made, unlisted=max(missing, more)))
