r"""Decides which tables are replicated, by their upstream names, and which kinds of their changes.

Promises: pure; the rules of a real Drainer (drainer.md 4a). Case never matters. A table passes if both of these hold:

* no do-list is set, or its database matches ``replicate-do-db``, or both names match an entry of ``replicate-do-table``;
* its database matches no entry of ``ignore-schemas``, and both names match no entry of ``ignore-table``.

A database itself is looked up with an empty table name. Databases of ``own_schemas`` never pass, neither rows nor DDLs: checkpoint, markers and marks describe one
target only, and in a ring each of them would come back as a change.

Every entry is a regular expression: after a leading ``~`` it may match anywhere, otherwise it stands between ``^`` and ``$``. It means what it means to a real
Drainer, whose expressions are Go's, or it is refused: syntax that only Go has (``[[:alpha:]]``, ``\z``, ``\pL``, ``\Q..\E``) has no counterpart here. The classes
``\d``, ``\w`` and ``\s`` and the boundary ``\b`` are ASCII's, as in Go.

``EventRules`` leave out kinds of changes, by table: ``table-migrate-rule`` and ``binlog-filter-rule`` of a real Drainer (drainer.md 4b). In a pattern for names,
``*`` as the last character stands for anything, ``?`` for one character, and ``[a-z]`` and ``[!a-z]`` for one character of a set. A pattern for a
database alone holds for the database and for every table of it. All rules that match a table apply. In a rule, the first event that matches decides.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from pyspark_tidb_binlog.conf.model import ApplyConfig, TableName
from pyspark_tidb_binlog.schemas.ddl_tokens import significant
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import Op

MARK_SCHEMA = "retl"
"""Database of the mark table (drainer.md 7)."""
MARK_TABLE = "_drainer_repl_mark"
_USUAL = "tidb_binlog"


def own_schemas(checkpoint_schema: str = _USUAL) -> frozenset[str]:
    """Return, in lower case, the databases of the mark table, of every Drainer's checkpoint by default, and ``checkpoint_schema``."""
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
    return any(_matcher(database).search(schema) and _matcher(name).search(table) for database, name in pairs)


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


# Rules.

_ROWS = {Op.INSERT: "insert", Op.UPDATE: "update", Op.DELETE: "delete"}
_ALIASES = {
    "create schema": "create database",
    "drop schema": "drop database",
    "alter schema": "alter database",
    "add index": "create index",
}
_DDLS = frozenset(
    f"{verb} {what}"
    for verb, whats in (
        ("create", ("database", "table", "index", "view")),
        ("drop", ("database", "table", "index", "view")),
        ("alter", ("database", "table")),
        ("truncate", ("table", "table partition")),
        ("rename", ("table",)),
        ("add", ("table partition",)),
        ("drop", ("table partition",)),
    )
    for what in whats
)
_GROUPS = frozenset({"all", "all ddl", "all dml", "none", "none ddl", "none dml", ""})
EVENTS = _GROUPS | _DDLS | frozenset(_ROWS.values()) | frozenset(_ALIASES)
"""What ``ignore-event`` may hold. Those on table partitions never match, as in a real Drainer: they are ``alter table``."""


@dataclass(frozen=True, slots=True)
class EventRule:
    """The changes that are left out of the tables that two patterns match."""

    schema: str
    table: str
    """Empty: the database and all of its tables."""
    events: tuple[str, ...] = ()
    sql: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EventRules:
    """The rules of one Drainer. The default leaves nothing out."""

    rules: tuple[EventRule, ...] = ()
    case_sensitive: bool = False

    def __post_init__(self) -> None:
        """Reject at start what no event or name could match."""
        for rule in self.rules:
            where = f"syncer.table-migrate-rule of {rule.schema}.{rule.table or '*'}"
            if not rule.schema:
                raise ConfigError("syncer.table-migrate-rule: source.schema is missing")
            for pattern in (rule.schema, rule.table):
                if "*" in pattern[:-1]:
                    raise ConfigError(f"{where}: {pattern!r} has * before its end, but * is a wildcard only at the end")
                try:
                    _glob(pattern)
                except re.error as error:
                    raise ConfigError(f"{where}: {pattern!r} is not a valid pattern: {error}") from error
            for event in rule.events:
                if event.lower() not in EVENTS:
                    raise ConfigError(f"{where}: ignore-event {event!r} is not one of {', '.join(sorted(EVENTS - {''}))}")
            try:
                _any_of(rule.sql)
            except re.error as error:
                raise ConfigError(f"{where}: ignore-sql {list(rule.sql)} is not a valid regular expression: {error}") from error

    @classmethod
    def of(cls, config: ApplyConfig) -> Self:
        """The rules from the settings.

        Raises:
            ConfigError: one names a rule that there is not, or is wrong in itself.
        """
        named = {rule.name: rule for rule in config.binlog_filter_rule}
        merged: dict[tuple[str, str], EventRule] = {}
        for chosen in config.table_migrate_rule:
            where = chosen.source_schema, chosen.source_table
            if not config.case_sensitive:
                where = where[0].lower(), where[1].lower()
            held = merged.get(where, EventRule(*where))
            for name in chosen.binlog_filter_rule:
                if name not in named:
                    known = ", ".join(sorted(named)) or "none"
                    raise ConfigError(
                        f"syncer.table-migrate-rule names [syncer.binlog-filter-rule.{name}], which does not exist; known: {known}"
                    )
                held = EventRule(*where, held.events + named[name].ignore_event, held.sql + named[name].ignore_sql)
            merged[where] = held
        return cls(tuple(merged.values()), config.case_sensitive)

    def ignored_rows(self, schema: str, table: str) -> frozenset[Op]:
        """The kinds of row changes of a table that are left out."""
        rules = self._of(schema, table)
        return frozenset(op for op, event in _ROWS.items() if any(_named(event, "dml", rule.events) for rule in rules))

    def ignores_ddl(self, schema: str, table: str, query: str) -> bool:
        """Whether a DDL on this table, or with ``table`` empty on this database, is left out; ``query``: the text of the user."""
        rules = self._of(schema, table)
        event = event_of(query) if rules else ""
        if event and any(_named(event, "ddl", rule.events) for rule in rules):
            return True
        return bool(query) and any(pattern.search(query) for rule in rules if (pattern := _any_of(rule.sql)))

    def _of(self, schema: str, table: str) -> list[EventRule]:
        if not self.case_sensitive:
            schema, table = schema.lower(), table.lower()
        return [r for r in self.rules if _glob(r.schema).fullmatch(schema) and (not r.table or _glob(r.table).fullmatch(table))]


_HEAD = 24
"""Tokens within which a DDL says what it is: CREATE VIEW may name algorithm, definer and security first."""


def event_of(query: str) -> str:
    """The event of a DDL's text; empty if it has none."""
    words = [token.word.lower() for token in significant(query)[:_HEAD]]
    if not words:
        return ""
    verb, rest = words[0], words[1:]
    if verb in ("truncate", "rename"):
        return f"{verb} table"
    for word in rest:
        if verb == "alter" and word not in ("database", "schema", "table", "ignore"):
            return ""
        name = _ALIASES.get(f"{verb} {word}", f"{verb} {word}")
        if name in _DDLS:
            return name
        if word in ("user", "sequence", "placement", "resource", "role", "(", "binding", "statistics"):
            return ""
    return ""


def _named(event: str, kind: str, events: Sequence[str]) -> bool:
    for entry in (_ALIASES.get(e.lower(), e.lower()) for e in events):
        if entry in ("all", f"all {kind}", event):
            return True
        if entry in ("none", f"none {kind}"):
            return False
    return False


def _any_of(patterns: Iterable[str]) -> re.Pattern[str] | None:
    joined = "|".join(patterns)
    return compiled(joined) if joined else None


@lru_cache(maxsize=1024)
def _glob(pattern: str) -> re.Pattern[str]:
    expression, place = "", 0
    while place < len(pattern):
        char, end = pattern[place], pattern.find("]", place)
        if char == "*":
            expression += ".*"
        elif char == "?":
            expression += "."
        elif char == "[" and end > place + 1:
            expression += _range(pattern[place + 1 : end])
            place = end
        else:
            expression += re.escape(char)
        place += 1
    return re.compile(expression, re.DOTALL)


def _range(inside: str) -> str:
    """The characters of a range; ``!`` alone is itself."""
    negated = inside.startswith("!") and len(inside) > 1
    letters = inside[1:] if negated else inside
    escaped = re.sub(r"([\\^\[&~|])", r"\\\1", letters)
    return f"[{'^' if negated else ''}{escaped}]"
