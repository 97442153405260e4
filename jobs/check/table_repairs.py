"""Which tables ``verify --apply`` repairs.

Promises: a table that another writer is known to change, by an open finding of kind ``rows``, is repaired only if the caller says that this writer is stopped. Without
a table ``findings`` that can be read here nothing is known of others.
"""

import contextlib
from dataclasses import dataclass

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.check.recorded_findings import open_findings
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.findings import FindingKind
from pyspark_tidb_binlog.sinks.verify.repairing import RepairedTable, Repairing
from pyspark_tidb_binlog.sinks.verify.verification import VerifiedTable


@dataclass(frozen=True, slots=True)
class TableRepair:
    """What became of one table."""

    refused: str = ""
    """Why nothing of it is repaired."""
    done: RepairedTable | None = None
    whole: bool = False
    """The whole table is as upstream."""
    more: bool = False
    """Rows differ that are not listed."""

    @property
    def rows(self) -> int:
        """How many rows were repaired."""
        return sum(one.times for one in self.done.repaired) if self.done is not None else 0


@dataclass(frozen=True, slots=True)
class TableRepairs:
    """The repairs of one run of ``verify``."""

    config: DrainerConfig
    repairing: Repairing
    others_stopped: bool

    def repair(self, table: VerifiedTable) -> TableRepair:
        """Repair what is listed of a table that was compared."""
        assert table.tally is not None
        if words := self._refusal(table):
            return TableRepair(words)
        done = self.repairing.repair(table)
        more = table.tally.unlisted > 0
        return TableRepair(done=done, whole=not done.left and not more and all(one.by_intent for one in table.left_out), more=more)

    def _refusal(self, table: VerifiedTable) -> str:
        assert table.tally is not None
        if missing := [one.words for one in table.left_out if not one.by_intent]:
            return f"rows cannot be made right before the table is: {missing[0]}"
        if not table.tally.differing or self.others_stopped:
            return ""
        rows = 0
        with contextlib.suppress(ConfigError):
            rows = sum((row["kind"], row["table"]) == (FindingKind.ROWS, table.target) for row in open_findings(self.config))
        return (
            rows
            and (
                f"{rows} findings of kind rows say that something else writes to the table (ctl findings), and a repair would undo its work or be undone. Stop it, "
                "then add --others-stopped"
            )
            or ""
        )
