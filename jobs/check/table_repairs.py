"""Which tables ``verify --apply`` repairs, and the findings that a repair closes.

Promises: a table that another writer is known to change, by an open finding of kind ``rows``, is repaired only if the caller says that this writer is stopped. Without
a table ``findings`` on this machine nothing is known of others, and nothing is closed.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.conf.units import days_or_duration
from pyspark_tidb_binlog.jobs.check.recorded_findings import open_findings, recorded_findings
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.sinks.delta.checkpoint_table import append_repairs
from pyspark_tidb_binlog.sinks.mysql.effects import shortened
from pyspark_tidb_binlog.sinks.verify.repair import Difference
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
        whole = not done.left and not table.tally.unlisted and all(one.by_intent for one in table.left_out)
        self._close(table, done, whole=whole)
        return TableRepair(done=done, whole=whole)

    def _refusal(self, table: VerifiedTable) -> str:
        assert table.tally is not None
        if missing := [one.words for one in table.left_out if not one.by_intent]:
            return f"rows cannot be made right before the table is: {missing[0]}"
        rows = sum(row["kind"] == FindingKind.ROWS for row in findings_of(self.config, table.target))
        if rows and table.tally.differing and not self.others_stopped:
            return (
                f"{rows} findings of kind rows say that something else writes to the table (ctl findings), and a repair would undo its work or be undone. Stop it, "
                "then add --others-stopped"
            )
        return ""

    def _close(self, table: VerifiedTable, done: RepairedTable, *, whole: bool) -> None:
        """Close what earlier findings say of the repaired rows, or of the whole table, up to the S at which its comparison began."""
        if not findings_of(self.config, table.target):
            return
        assert table.began is not None
        ts, words = table.began.ts, f"verify --apply made it as upstream at {done.ts}"
        closed = [Finding(FindingKind.REPAIRED, words, table.target, ts, _key(difference)) for difference in done.repaired]
        if whole:
            closed.append(Finding(FindingKind.REPAIRED, f"{words}: all of its rows", table.target, ts))
        if closed:
            append_repairs(self.config.findings_dir, closed, days_or_duration(self.config.delta_retention))


def findings_of(config: DrainerConfig, label: str) -> Sequence[dict[str, Any]]:
    """The open findings of a table, as far as this machine knows. ``label``: its name at the target, quoted."""
    with contextlib.suppress(ConfigError):  # the Delta table is elsewhere, or not there yet
        return [row for row in open_findings(recorded_findings(config)) if row["table"] == label]
    return []


def _key(difference: Difference) -> str:
    return shortened(", ".join(f"{name}={value}" for name, value in difference.key.items()))
