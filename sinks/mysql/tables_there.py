"""Fits each step to the tables as they are at the target: missing columns, additional columns, missing tables. [db]

A column that changes values without a warning (``exactness``) is a finding, once per table; if the column identifies rows, the step is refused.

Promises: three queries for all tables that are not known, and none where those of a step are. What is known is forgotten after ``KEPT_SECONDS``, so a table that a
person changes is noticed by then; and by ``forget``: after a DDL of ours, after an error that another table would explain (``OUTDATED``), and after an error
that is retried, because the next connection may lead to another server. A table that the target does not have is a finding with the number of its rows.
With ``on-finding = stop`` it raises ``FindingError`` before anything of the step is written; with ``record`` its rows are skipped and the step continues.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError, FindingError
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind, in_words
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.sinks.engine.batch_report import Written
from pyspark_tidb_binlog.sinks.engine.segments import RowsStep
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect, dialect_of
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, table_name
from pyspark_tidb_binlog.sinks.mysql.exactness import inexact
from pyspark_tidb_binlog.sinks.mysql.folded_keys import folded_keys
from pyspark_tidb_binlog.sinks.mysql.retry_policy import ONCE, Attempt, retrying
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.mysql.structure import OUTDATED, TableName, TargetTable, is_absent, read_tables
from pyspark_tidb_binlog.sinks.mysql.target_fit import Misfit, as_found, left_out

_log = logging.getLogger(__name__)

KEPT_SECONDS = 30.0
"""Maximum age of what is known of tables."""
_BAD_FIELD = 1054


@dataclass(frozen=True, slots=True)
class ConcernedTable:
    """A table of a step, and what is known of its rows there."""

    table: TableAt
    name: TableName
    first_ts: int
    rows: int
    """-1 = not counted."""


Known = Mapping[TableName, TargetTable | None]
"""What the target has of the tables that are concerned; None: no such table."""


@dataclass(frozen=True, slots=True)
class FittedStep:
    """A step for the tables as they are at the target."""

    step: RowsStep
    findings: tuple[Finding, ...] = ()
    """Tables that the target lacks, and columns that change values and were not reported before."""


@dataclass(frozen=True, slots=True)
class _TableFit:
    """What was found of a table with this structure at the target."""

    table: TableAt
    there: TargetTable
    keyed: bool
    fitted: TableAt
    inexact: tuple[str, ...]
    """In words: columns that change values, and unique keys that take rows of the upstream for one."""
    inexact_key: str
    """The same of a column by which rows are found; empty: there is none."""


_OWN_KEY = (
    "the upstream does not have the target's unique key {}. A row that is written removes another row with the same value of this key, and a finding reports it. "
    "Drop the key there, unless its values are unique upstream too"
)


class TablesThere:
    """What the target's tables are like, for one sink."""

    def __init__(self, settings: ApplyConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._known: dict[TableName, TargetTable] = {}
        self._since = 0.0
        """When the first of them was read."""
        self._logged: set[tuple[str, str]] = set()
        """Tables, and what the log has said of them."""
        self._told: set[tuple[str, str]] = set()
        """Tables, and what was a finding of them."""
        self._dialect = Dialect(Flavour.MARIADB)
        """Set by the first ``read``."""
        self._fits: dict[TableName, _TableFit] = {}
        """The last one of each table."""

    def forget(self) -> None:
        """Read the tables again when they are needed; from any thread."""
        self._known = {}

    def fitting(self) -> Iterator[Attempt]:
        """Yield an attempt, and another one with the tables read again if a table was changed meanwhile. In parts, what a part has marked as done stays."""
        for attempt in retrying(ONCE, OUTDATED):
            if attempt.refused is not None:
                _log.info("a table of the target has changed since its structure was read; it is read again: %s", attempt.refused)
                self.forget()
            yield attempt

    def kept(self, concerned: Sequence[ConcernedTable]) -> Known | None:
        """What is known of the tables; None: they are to be read."""
        known = self._known
        if known and self._clock() - self._since > KEPT_SECONDS:
            self.forget()
        elif all(one.name in known for one in concerned):
            return known
        return None if concerned else {}

    def read(self, session: Session, concerned: Sequence[ConcernedTable]) -> Known:
        """Ask the target for the tables."""
        names, known = {one.name for one in concerned}, self._known
        if unknown := names - known.keys():
            self._since = self._since if known else self._clock()
            known |= read_tables(session, unknown)
        self._dialect = dialect_of(session, self._settings)
        return known | {name: None for name in unknown if name not in known and is_absent(session, *name)}

    def fit(
        self,
        step: RowsStep,
        concerned: Sequence[ConcernedTable],
        known: Known,
        superseded: Collection[int] = (),
        *,
        keyed: bool = True,
    ) -> FittedStep:
        """``step`` for the tables as they are.

        Args:
            step: what is to be done.
            concerned: its tables with rows.
            known: these at the target.
            superseded: ids of tables whose next DDL may have been executed there. What their columns cannot hold exactly is written again after it.
            keyed: as for ``as_found``.

        Raises:
            FindingError: the target lacks a table, and ``on-finding`` is ``stop``.
            ApplyError: a table is not as it must be.
        """
        tables, findings, inexactly = dict(step.tables), list[Finding](), list[Finding]()
        for one in concerned:
            if one.name not in known:
                continue  # made between two queries, or hidden from the account: the server will say
            there = known[one.name]
            if there is None:
                del tables[one.table.table_id]
                findings.append(self._missing(one, step))
                continue
            fit = self._fits.get(one.name)
            if fit is None or fit.there is not there or fit.keyed is not keyed or fit.table != one.table:
                fit = self._fits[one.name] = self._fit(one, there, keyed)
            tables[one.table.table_id] = fit.fitted
            if fit.inexact and one.table.table_id not in superseded:
                inexactly += self._inexact(one, fit)
        if (findings or inexactly) and self._settings.on_finding == "stop":
            way_out = "to continue without these rows and record this" if findings else "to continue and record this"
            raise FindingError(
                f"{in_words((findings or inexactly)[0], self._settings.log_row_data)}. Nothing of this transaction is committed. Repair the target and start again; or, {way_out}, set "
                "spark.on-finding = record"
            )
        if any(tables.get(i) is not table for i, table in step.tables.items()):
            step = replace(step, tables=tables, gone=step.gone | (step.tables.keys() - tables.keys()))
        return FittedStep(step, (*findings, *inexactly))

    def settled(self, fitted: FittedStep, written: Written) -> Written:
        """``written`` with the findings of the tables, which are reported by that: a column that changes values is reported once."""
        self._told |= {(one.table, one.words) for one in fitted.findings}
        return Written(written.rows, fitted.findings + written.findings)

    def _fit(self, one: ConcernedTable, there: TargetTable, keyed: bool) -> _TableFit:
        table = one.table
        fitted = as_found(table, there, partial=self._settings.partial_columns, keyed=keyed)
        if isinstance(fitted, Misfit):
            raise _refused(one, fitted.why)
        columns, folded = inexact(table, there), folded_keys(table.info, there, self._settings, self._dialect)
        if folded != fitted.folded:
            fitted = replace(fitted, folded=folded)
        label = table_name(table.schema, table.name)
        if left := left_out(table, fitted):
            why = "syncer.to.sync-mode = 2" if self._settings.sync_mode == 2 else "syncer.sync-ddl = false"
            self._log(label, f"the target has no column {', '.join(left)}; rows are written without it from now on ({why})")
        if fitted.own_keys:
            self._log(label, _OWN_KEY.format(", ".join(fitted.own_keys)))
        if folded is not None and not folded.known:
            self._log(label, folded.words)
        words = [column.words for column in columns] + ([folded.words] if folded is not None and folded.known else [])
        # A frozen table is as the refused DDL left it.
        keys = [column.words for column in columns if column.key and not table.frozen]
        return _TableFit(table, there, keyed, fitted, tuple(words), keys[0] if keys else "")

    def _inexact(self, one: ConcernedTable, fit: _TableFit) -> list[Finding]:
        """Columns of a table that change values in silence, and that nothing was said of yet."""
        if fit.inexact_key:
            raise _refused(one, f"its key identifies rows, and {fit.inexact_key}")
        label = table_name(one.table.schema, one.table.name)
        new = [words for words in fit.inexact if (label, words) not in self._told]
        for words in new:
            self._log(label, words)
        return [Finding(FindingKind.VALUE, words, label, one.first_ts) for words in new]

    def _log(self, label: str, words: str) -> None:
        """Log it once."""
        if (label, words) not in self._logged:
            self._logged.add((label, words))
            _log.warning("%s: %s", label, words)

    def _missing(self, one: ConcernedTable, step: RowsStep) -> Finding:
        words = "the target has no such table, so its rows are not written: create it there with the upstream's rows, or leave it out with syncer.ignore-table"
        found = 0 if one.rows >= 0 else -1
        return Finding(FindingKind.ROWS, words, table_name(one.table.schema, one.table.name), step.upto_ts, wanted=one.rows, found=found)


def _refused(one: ConcernedTable, why: str) -> ApplyError:
    table = table_name(one.table.schema, one.table.name)
    return ApplyError(
        f"{table}, commit_ts {one.first_ts} ({as_time(one.first_ts)}), schema version {int(one.table.version)}: the target's table cannot take the "
        f"rows: {why}, or skip the transaction with syncer.ignore-txn-commit-ts = [{one.first_ts}]",
        _BAD_FIELD,
        why,
    )


def concerned_by(step: RowsStep, rows: pa.Table | None) -> list[ConcernedTable]:
    """The tables to which ``step`` writes rows; ``rows``: its row events (``ROW_EVENT``), None if they are not at hand."""
    tables = {i: t for i, t in step.tables.items() if i not in step.gone and t.has_rows}
    if rows is None:
        return [ConcernedTable(table, (table.schema, table.name), step.upto_ts, -1) for table in tables.values()]
    if not rows.num_rows:
        return []
    ids, commit_ts = rows.column("table_id").to_numpy(), rows.column("commit_ts").to_numpy()
    found = []
    for table_id in np.unique(ids).tolist():
        if table_id in tables:
            table, mine = tables[table_id], commit_ts[ids == table_id]
            found.append(ConcernedTable(table, (table.schema, table.name), int(mine.min()), len(mine)))
    return found
