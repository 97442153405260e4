"""Interface of the target for leases and DDLs: transactions and statements."""

from collections.abc import Sequence
from typing import Any, Protocol

from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour


def as_text(value: object) -> str:
    """A value of an answer as text: some servers return some texts, as those of ``information_schema``, as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


class Target(Protocol):
    """The part of ``sinks.mysql.session.Session`` that leases and DDLs use."""

    flavour: Flavour
    version: str
    database: str

    @property
    def autocommit(self) -> bool:
        """Whether the server commits each statement outside a transaction."""

    def execute(self, sql: bytes | str, args: Sequence[Any] | None = None) -> int:
        """Run a statement without a result set; the number of affected rows."""

    def query(self, sql: str, args: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Run a statement and return its result set."""

    def use(self, database: str) -> None:
        """Make ``database`` the current one."""

    def write(self, sql: str, args: Sequence[Any] | None = None) -> int:
        """Run a statement that writes rows, as a transaction of its own."""

    def begin(self) -> None:
        """Open a transaction."""

    def commit(self) -> None:
        """Commit the transaction."""

    def rollback(self) -> None:
        """Roll back the transaction."""
