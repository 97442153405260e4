"""Matches the foreign keys of the upstream's table with those of the target's table. [db]

A server names a foreign key that has no name: TiDB ``fk_1``, InnoDB ``t_ibfk_1``. TiDB's name cannot be used at the target: there it must be unique in
the database, in TiDB only in the table. So if the target lacks the name, the key is found by its columns: it is a key over the same columns with a name
that a server has made.

Promises: reads only.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.history import JobType, TableAt
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import quoted
from pyspark_tidb_binlog.sinks.mysql.ddl.text import Subject
from pyspark_tidb_binlog.sinks.mysql.target import Target, as_text

_Columns = tuple[str, ...]
_MADE = re.compile(r"(.*_ibfk_|fk_)?\d+")
"""What servers call a foreign key without a name."""


@dataclass(frozen=True, slots=True)
class ForeignKeys:
    """The foreign keys of one table at the target."""

    there: Mapping[str, _Columns]
    """The columns, in lower case, by the key's name."""

    @classmethod
    def of(cls, session: Target, table: TableAt) -> "ForeignKeys":
        """Read those of ``table``."""
        rows = session.query(
            "SELECT constraint_name, column_name FROM information_schema.key_column_usage "
            "WHERE table_schema = %s AND table_name = %s AND referenced_table_name IS NOT NULL ORDER BY constraint_name, ordinal_position",
            [table.schema, table.name],
        )
        found: dict[str, _Columns] = {}
        for name, column in rows:
            found[as_text(name)] = (*found.get(as_text(name), ()), as_text(column).lower())
        return cls(found)

    def lacks(self, info: TableInfo, name: str) -> bool:
        """Whether the key ``name`` of ``info`` is missing."""
        if self._has(name):
            return False
        columns = _upstream(info)[name]
        return not columns or len(self._unnamed(info, columns)) < len(self._sought(info, columns))

    def left(self, old: TableInfo, new: TableInfo, name: str) -> str:
        """The target's name of the key ``name`` of ``old``, which ``new`` does not have; empty if it is gone."""
        if self._has(name):
            return next(n for n in self.there if n.lower() == name.lower())
        columns = _upstream(old)[name]
        unnamed = self._unnamed(old, columns) if columns else []
        return unnamed[0] if len(unnamed) > len(self._sought(new, columns)) else ""

    def _has(self, name: str) -> bool:
        return name.lower() in {n.lower() for n in self.there}

    def _unnamed(self, info: TableInfo, columns: _Columns) -> list[str]:
        """Those over these columns that a server has named, and otherwise than any of ``info``."""
        known = {n.lower() for n in info.foreign_key_names}
        return sorted(n for n, found in self.there.items() if found == columns and _MADE.fullmatch(n) and n.lower() not in known)

    def _sought(self, info: TableInfo, columns: _Columns) -> list[str]:
        """Those of ``info`` over these columns that are not there by name."""
        return [n for n, own in _upstream(info).items() if own == columns and not self._has(n)]


def drop_of_another_name(session: Target, subject: Subject) -> str:
    """The statement that drops what a DROP FOREIGN KEY drops, if the target has it under another name; empty if it has not."""
    old, new = subject.old, subject.new
    if subject.job.type != JobType.DROP_FOREIGN_KEY or old is None or new is None:
        return ""
    there = ForeignKeys.of(session, old)
    names = [there.left(old.info, new.info, n) for n in old.info.foreign_key_names if n not in new.info.foreign_key_names]
    drops = ", ".join(f"DROP FOREIGN KEY {quote_name(n)}" for n in names if n)
    return f"ALTER TABLE {quoted(old.schema, old.name)} {drops}" if drops else ""


def _upstream(info: TableInfo) -> dict[str, _Columns]:
    return {key.name: tuple(c.lower() for c in key.columns) for key in info.foreign_keys}
