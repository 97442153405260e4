"""Names of tables in options: one, ``db.table``, or patterns of several, ``db.*, other.t_?``. Pure.

Promises: names are compared without regard to case, as TiDB does; a name in back quotes may contain dots and commas.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Self

from pyspark_tidb_binlog.schemas.errors import ConfigError

SYSTEM = frozenset({"mysql", "information_schema", "performance_schema", "metrics_schema", "sys", "tidb_binlog"})
"""Databases of which nothing is given unless a pattern names them."""
_PART = r"`(?:[^`]|``)+`|[^.,`]+"
_SIGN = re.compile(r"\[([*?[])\]")
"""A sign that is no wildcard, in a pattern."""
_NAME = re.compile(rf"\s*({_PART})\.({_PART})\s*(?:,|$)")
_SEVERAL = "give db.table, several separated by commas"


@dataclass(frozen=True, slots=True)
class NamedTable:
    """One table."""

    database: str
    table: str

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"

    @classmethod
    def of(cls, text: str, what: str = "the table") -> Self:
        """The name in ``text``; ``what``: where it was given.

        Raises:
            ConfigError: it is not ``db.table``.
        """
        found = list(_parts(text, what, "give one as db.table"))
        if len(found) != 1:
            raise ConfigError(f"{what} is {text!r}: give one as db.table")
        return cls(*map(_bare, found[0]))

    def is_of(self, database: str, table: str) -> bool:
        """Whether it names this table."""
        return (self.database.lower(), self.table.lower()) == (database.lower(), table.lower())


@dataclass(frozen=True, slots=True)
class NamedTables:
    """Patterns of names; none: every table that is not the system's."""

    patterns: tuple[tuple[str, str], ...] = ()
    """As ``fnmatch`` has them, in lower case."""

    @classmethod
    def of(cls, text: str) -> Self:
        """The patterns in ``text``; ``ConfigError`` if they are not db.table, with ``*`` and ``?``."""
        return cls(
            tuple((_pattern(database), _pattern(table)) for database, table in _parts(text, "option tables", _SEVERAL))
            if text.strip()
            else ()
        )

    def choose(self, database: str, table: str) -> bool:
        """Whether a table is meant."""
        database, table = database.lower(), table.lower()
        if not self.patterns:
            return database not in SYSTEM
        return any(fnmatchcase(database, d) and fnmatchcase(table, t) for d, t in self.patterns)

    def names(self) -> tuple[NamedTable, ...]:
        """The tables, if no pattern has a wildcard."""
        plain = [tuple(_SIGN.sub(r"\1", part) for part in pair) for pair in self.patterns]
        wild = any(set(_SIGN.sub("", part)) & set("*?") for pair in self.patterns for part in pair)
        return () if wild else tuple(NamedTable(database, table) for database, table in plain)

    def choose_database(self, database: str) -> bool:
        """Whether any table of a database is meant."""
        database = database.lower()
        return any(fnmatchcase(database, d) for d, _ in self.patterns) if self.patterns else database not in SYSTEM


def _parts(text: str, what: str, wanted: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        found = _NAME.match(text, at)
        if found is None:
            raise ConfigError(f"{what} is {text!r}: {wanted}, with `back quotes` around odd names")
        yield found[1], found[2]
        at = found.end()


def _bare(part: str) -> str:
    part = part.strip()
    return part[1:-1].replace("``", "`") if part.startswith("`") else part


def _pattern(part: str) -> str:
    """The pattern for ``fnmatch``: every character in back quotes, and a bracket anywhere, matches only itself."""
    literal = part.strip().startswith("`")
    return "".join(f"[{sign}]" if sign == "[" or (literal and sign in "*?") else sign for sign in _bare(part).lower())
