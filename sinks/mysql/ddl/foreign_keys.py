"""Matches the foreign keys of the upstream's table with those of the target's table. Pure.

A server names a foreign key that has no name: TiDB ``fk_1``, InnoDB ``t_ibfk_1``. TiDB's name cannot be used at the target: there it must be unique in
the database, in TiDB only in the table. So if the target lacks the name, the key is found by its columns: it is a key over the same columns with a name
that a server has made.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_tidb_binlog.schemas.tableinfo import TableInfo

_Columns = tuple[str, ...]
_MADE = re.compile(r"(.*_ibfk_|fk_)?\d+")
"""What servers call a foreign key without a name."""


@dataclass(frozen=True, slots=True)
class ForeignKeys:
    """The foreign keys of one table at the target."""

    there: Mapping[str, _Columns]
    """The columns, in lower case, by the key's name."""

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


def _upstream(info: TableInfo) -> dict[str, _Columns]:
    return {key.name: tuple(c.lower() for c in key.columns) for key in info.foreign_keys}
