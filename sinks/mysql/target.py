"""The target as leases and DDLs see it: statements in a transaction, whoever runs them."""

from collections.abc import Sequence
from typing import Any, Protocol

from sinks.mysql.dialect import Flavour


class Target(Protocol):
    """What leases and DDLs need of ``sinks.mysql.session.Session``."""

    flavour: Flavour

    def execute(self, sql: bytes | str, args: Sequence[Any] | None = None) -> int:
        """Run a statement without a result."""
        ...

    def query(self, sql: str, args: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Run a statement with a result."""
        ...

    def begin(self) -> None:
        """Open a transaction."""
        ...

    def commit(self) -> None:
        """Commit it."""
        ...

    def rollback(self) -> None:
        """Undo it."""
        ...
