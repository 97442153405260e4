r"""Decides which tables are replicated, by their upstream names.

Promises: pure; the rules of a real Drainer (drainer.md 4a). Case never matters. A table passes if both of these hold:

* no do-list is set, or its database matches ``replicate-do-db``, or both names match an entry of ``replicate-do-table``;
* its database matches no entry of ``ignore-schemas``, and both names match no entry of ``ignore-table``.

A database itself is looked up with an empty table name. Databases of ``own_schemas`` never pass, neither rows nor DDLs: checkpoint, markers and marks describe one
target only, and in a ring each of them would come back as a change.

Every entry is a regular expression: after a leading ``~`` it may match anywhere, otherwise it stands between ``^`` and ``$``. It means what it means to a real
Drainer, whose expressions are Go's, or it is refused: syntax that only Go has (``[[:alpha:]]``, ``\z``, ``\pL``, ``\Q..\E``) has no counterpart here. The classes
``\d``, ``\w`` and ``\s`` and the boundary ``\b`` are ASCII's, as in Go.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from pyspark_tidb_binlog.conf.model import ApplyConfig, TableName
from pyspark_tidb_binlog.schemas.errors import ConfigError

MARK_SCHEMA = "retl"
"""Database of the mark table (drainer.md 7)."""
MARK_TABLE = "_drainer_repl_mark"
_USUAL = "tidb_binlog"


def own_schemas(checkpoint_schema: str = _USUAL) -> frozenset[str]:
    """In lower case: the mark table's, that of every Drainer's checkpoint by default, and ``checkpoint_schema``, that of this one."""
    return frozenset({MARK_SCHEMA, _USUAL, checkpoint_schema.lower()})


TablePatterns = tuple[tuple[str, str], ...]
"""(database, table)."""


@dataclass(frozen=True, slots=True)
class TableFilter:
    """The filter of one Drainer; picklable for the executors. The default replicates everything but what is a Drainer's own."""

    replicate_schemas: tuple[str, ...] = ()
    ignore_schemas: tuple[str, ...] = ()
    replicate_tables: TablePatterns = ()
    ignore_tables: TablePatterns = ()
    own: frozenset[str] = own_schemas()
    """Databases that are a Drainer's own, in lower case."""

    def __post_init__(self) -> None:
        """Reject an entry that is not a valid regular expression at start, where the error can name it."""
        named = (
            ("replicate-do-db", self.replicate_schemas),
            ("ignore-schemas", self.ignore_schemas),
            ("replicate-do-table", [name for pair in self.replicate_tables for name in pair]),
            ("ignore-table", [name for pair in self.ignore_tables for name in pair]),
        )
        for setting, patterns in named:
            for pattern in patterns:
                try:
                    _matcher(pattern)
                except re.error as error:
                    raise ConfigError(f"syncer.{setting}: {pattern!r} is not a valid regular expression: {error}") from error

    @classmethod
    def of(cls, config: ApplyConfig) -> Self:
        """The filter from the settings."""
        tables = _pairs(config.replicate_do_table), _pairs(config.ignore_table)
        return cls(config.replicate_do_db, config.ignore_schemas, *tables, own_schemas(config.checkpoint_schema))

    def keeps(self, schema: str, table: str = "") -> bool:
        """Whether changes of this table are replicated; ``table`` empty: those of the database itself."""
        return _keeps(self, schema.lower(), table.lower())


@lru_cache(maxsize=8192)
def _keeps(self: TableFilter, schema: str, table: str) -> bool:
    if schema in self.own:
        return False
    if (self.replicate_schemas or self.replicate_tables) and not (
        _match(self.replicate_schemas, schema) or _match_both(self.replicate_tables, schema, table)
    ):
        return False
    return not (_match(self.ignore_schemas, schema) or _match_both(self.ignore_tables, schema, table))


def _match(patterns: Iterable[str], name: str) -> bool:
    return any(_matcher(pattern).search(name) for pattern in patterns)


def _match_both(pairs: TablePatterns, schema: str, table: str) -> bool:
    return any(_matcher(one).search(schema) and _matcher(other).search(table) for one, other in pairs)


def _matcher(pattern: str) -> re.Pattern[str]:
    return compiled(pattern[1:] if pattern.startswith("~") else f"^{pattern}$")


def _pairs(names: Iterable[TableName]) -> TablePatterns:
    return tuple((name.db_name, name.tbl_name) for name in names)


_ONLY_GO = re.compile(r"\[:\^?\w+:\]")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ASCII = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\t\n\f\r "}


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> re.Pattern[str]:
    """``pattern`` without regard to case.

    Raises:
        re.error: it is not valid, or Python would read it in another way than Go.
    """
    known = _ONLY_GO.search(pattern)
    if known is not None:
        raise re.error(f"character classes such as {known.group()} are not supported, write [a-z] or \\w")
    if re.search(r"(?<!\\)(?:\\\\)*\\Z", pattern):
        raise re.error("Go does not support \\Z")
    re.compile(pattern)  # its own errors have the places of the user's text
    return re.compile(_with_ascii_classes(pattern), re.IGNORECASE)


def _with_ascii_classes(pattern: str) -> str:
    out, at, inside = "", 0, False
    while at < len(pattern):
        char, end = pattern[at], at + 1
        if escaped := _ESCAPED.match(pattern, at):
            char, end = _ascii(escaped.group(1), inside=inside), escaped.end()
        elif inside:
            inside = char != "]"
        elif char == "[":
            # A ] that comes first stands for itself.
            first = re.compile(r"\[\^?\]?").match(pattern, at)
            assert first is not None
            char, end, inside = first.group(), first.end(), True
        out, at = out + char, end
    return out


def _ascii(letter: str, *, inside: bool) -> str:
    if letter in "bB":
        return f"\\{letter}" if inside else f"(?a:\\{letter})"
    if letter.lower() not in _ASCII:
        return f"\\{letter}"
    if inside and letter.isupper():
        raise re.error(f"\\{letter} within [] is not supported")
    some = _ASCII[letter.lower()]
    return some if inside else f"[{'^' if letter.isupper() else ''}{some}]"
