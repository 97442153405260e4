"""A MariaDB's session that plays a TiDB: what it drops or truncates can be restored by its name, until its GC takes it."""

from collections.abc import Sequence
from typing import Any

from pyspark_tidb_binlog.schemas.ddl_tokens import QualifiedName, quote_name, read_name, significant
from pyspark_tidb_binlog.schemas.errors import ServerRefused
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.session import Session

DROPPED = "dropped_tables"
"""The database that holds what was dropped."""


class RestoringTidb:
    """Everything but DROP, TRUNCATE, RECOVER and FLASHBACK TABLE goes to the server as it is."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.flavour = Flavour.TIDB
        self.version = "8.0.11-TiDB-v7.1.0"
        self.restored: list[str] = []
        """The statements that restore a table, as they came."""
        self.refusal = (1105, "Can't find dropped/truncated table 't' in GC safe point 2026-01-01 00:00:00 +0000 UTC")
        """How it refuses to restore what it does not have."""
        self._gone: list[tuple[QualifiedName, str]] = []
        session.execute(f"CREATE DATABASE {DROPPED}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def execute(self, sql: bytes | str, args: Sequence[Any] | None = None) -> int:
        tokens = significant(sql if isinstance(sql, str) else sql.decode())
        match [t.word for t in tokens[:2]]:
            case ["DROP" | "TRUNCATE" as verb, "TABLE"]:
                return self._drop(self._full(read_name(tokens, 2)[0]), keep=verb == "TRUNCATE")
            case ["RECOVER" | "FLASHBACK", "TABLE"]:
                self.restored.append(str(sql))
                name, end = read_name(tokens, 2)
                return self._restore(self._full(name), tokens[end + 1].name if len(tokens) > end else name.name)
        return self.session.execute(sql, args)

    def collect(self) -> None:
        """The GC has passed all that was dropped."""
        self._gone.clear()

    def tables(self) -> list[str]:
        """The names of the tables in ``d`` and ``x``, sorted."""
        sql = "SELECT CONCAT(table_schema, '.', table_name) FROM information_schema.tables WHERE table_schema IN ('d', 'x') ORDER BY 1"
        return [str(name) for (name,) in self.session.query(sql)]

    def _full(self, name: QualifiedName) -> QualifiedName:
        return QualifiedName(name.schema or self.session.database, name.name)

    def _drop(self, name: QualifiedName, *, keep: bool) -> int:
        number = len(self.session.query(f"SHOW TABLES FROM {DROPPED}"))
        if keep:
            self.session.execute(f"CREATE TABLE {DROPPED}.made LIKE {_quoted(name)}")
        made = f", {DROPPED}.made TO {_quoted(name)}" if keep else ""
        self._gone.append((name, f"{DROPPED}.t{number}"))
        return self.session.execute(f"RENAME TABLE {_quoted(name)} TO {DROPPED}.t{number}{made}")

    def _restore(self, name: QualifiedName, new: str) -> int:
        last = next((at for at in reversed(range(len(self._gone))) if self._gone[at][0] == name), None)
        if last is None:
            errno, words = self.refusal
            raise ServerRefused(f"DDL: error {errno}, {words}", errno, words)
        changed = self.session.execute(f"RENAME TABLE {self._gone[last][1]} TO {_quoted(QualifiedName(name.schema, new))}")
        del self._gone[last]
        return changed


def _quoted(name: QualifiedName) -> str:
    return f"{quote_name(name.schema)}.{quote_name(name.name)}"
