"""Sends the statements of rows, and reports what the target refused: the row, its table and transaction, and what to do. [db]

Promises: no statement is sent that is too long for the server. Keys and the server's words, which may hold row data, are shown only with ``log-row-data``.
"""

from collections.abc import Callable, Sequence

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError, FindingError
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind, in_words
from pyspark_tidb_binlog.schemas.redaction import HIDDEN
from pyspark_tidb_binlog.sinks.mysql.effects import StatementResult, key_text
from pyspark_tidb_binlog.sinks.mysql.session import PACKET_TOO_LARGE, Session
from pyspark_tidb_binlog.sinks.mysql.statements import Statement

DUPLICATE = 1062
NOT_COMPARABLE = frozenset({1267, 1525, 3854})
"""A text is compared with a column whose charset cannot represent it, so no row has that value: MariaDB's error and MySQL 8's;
or a date with one that MySQL does not take for a date."""


class StatementSender:
    """The statements of one transaction on their way to the server."""

    def __init__(self, session: Session, settings: ApplyConfig) -> None:
        self._session = session
        self._settings = settings

    def send(self, statement: Statement, sql: bytes, meanwhile: Callable[[], None] | None = None) -> StatementResult:
        """Execute ``sql``, of ``statement``; ``meanwhile`` is called while the server works.

        Raises:
            ApplyError: it is too long for the server, or the server refuses it.
        """
        if words := self._session.too_large(sql):
            raise ApplyError(f"{self.place(statement)}: {words}", PACKET_TOO_LARGE)
        return self._session.answer(sql, meanwhile)

    def refusal(self, statement: Statement, error: ApplyError, way_out: str) -> ApplyError:
        """``error`` with the row that it is about. ``way_out``: how to continue without the row, after "start again"."""
        if error.errno == PACKET_TOO_LARGE:
            return error
        return ApplyError(
            f"{self.place(statement)}, schema version {statement.origin.schema_version}: {error}. Repair the target (its message says "
            f"what it rejects) and start again{way_out}",
            error.errno,
            error.words,
        )

    def place(self, statement: Statement) -> str:
        """Table, key and transaction."""
        key = key_text(statement) if self._settings.log_row_data else HIDDEN
        ts = statement.newest_ts
        return f"{statement.origin.table}, key {key}, commit_ts {ts} ({as_time(ts)})"


def stop_at_findings(findings: Sequence[Finding], settings: ApplyConfig) -> None:
    """End a transaction that has findings, if that is set.

    Raises:
        FindingError: it must not be committed.
    """
    findings = [found for found in findings if found.kind is not FindingKind.FAILOVER]
    if not findings or settings.on_finding != "stop":
        return
    first = in_words(findings[0], settings.log_row_data)
    raise FindingError(
        f"the target differs from what the binlogs expect, {len(findings)} findings, the first: {first}. Nothing of this transaction is "
        "committed. Compare the table with the upstream, repair it and start again. Or set spark.on-finding = record, which records findings and "
        "continues"
    )
