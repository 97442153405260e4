"""Rules that leave out kinds of changes, by table: ``table-migrate-rule`` and ``binlog-filter-rule`` of a real Drainer (drainer.md 4b).

Promises: pure; the rules of a real Drainer. In a pattern for names, ``*`` as the last character stands for anything, ``?`` for one character, and
``[a-z]`` and ``[!a-z]`` for one character of a set. A pattern for a database alone holds for the database and for every table of it. All rules that
match a table apply. In a rule, the first event that matches decides.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from pyspark_tidb_binlog.conf.model import ApplyConfig, TableMigrateRule
from pyspark_tidb_binlog.schemas.ddl_tokens import Token, significant
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.sinks.routing.table_filter import compiled

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
    """What is left out of the tables that two patterns match."""

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
            where = _where(chosen, fold=not config.case_sensitive)
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
        found = self._of(schema, table)
        return frozenset(op for op, event in _ROWS.items() if any(_named(event, "dml", rule.events) for rule in found))

    def ignores_ddl(self, schema: str, table: str, query: str) -> bool:
        """Whether a DDL on this table, or with ``table`` empty on this database, is left out; ``query``: the text of the user."""
        found = self._of(schema, table)
        event = event_of(query) if found else ""
        return any((event and _named(event, "ddl", rule.events)) or (query and _said(rule.sql, query)) for rule in found)

    def _of(self, schema: str, table: str) -> list[EventRule]:
        if not self.case_sensitive:
            schema, table = schema.lower(), table.lower()
        return [r for r in self.rules if _glob(r.schema).fullmatch(schema) and (not r.table or _glob(r.table).fullmatch(table))]


_HEAD = 24
"""Tokens within which a DDL says what it is: CREATE VIEW may name algorithm, definer and security first."""


def event_of(query: str) -> str:
    """The event of a DDL's text; empty if it has none."""
    words = [_word(token) for token in significant(query)[:_HEAD]]
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


def _word(token: Token) -> str:
    return token.word.lower()


def _where(chosen: TableMigrateRule, *, fold: bool) -> tuple[str, str]:
    names = chosen.source_schema, chosen.source_table
    return (names[0].lower(), names[1].lower()) if fold else names


def _named(event: str, kind: str, events: Sequence[str]) -> bool:
    for one in (_ALIASES.get(e.lower(), e.lower()) for e in events):
        if one in ("all", f"all {kind}", event):
            return True
        if one in ("none", f"none {kind}"):
            return False
    return False


def _said(patterns: tuple[str, ...], query: str) -> bool:
    found = _any_of(patterns)
    return found is not None and found.search(query) is not None


def _any_of(patterns: Iterable[str]) -> re.Pattern[str] | None:
    joined = "|".join(patterns)
    return compiled(joined) if joined else None


@lru_cache(maxsize=1024)
def _glob(pattern: str) -> re.Pattern[str]:
    found, at = "", 0
    while at < len(pattern):
        char, end = pattern[at], pattern.find("]", at)
        if char == "*":
            found += ".*"
        elif char == "?":
            found += "."
        elif char == "[" and end > at + 1:
            found += _range(pattern[at + 1 : end])
            at = end
        else:
            found += re.escape(char)
        at += 1
    return re.compile(found, re.DOTALL)


def _range(inside: str) -> str:
    """The characters of a range; ``!`` alone is itself."""
    negated = inside.startswith("!") and len(inside) > 1
    letters = inside[1:] if negated else inside
    escaped = re.sub(r"([\\^\[&~|])", r"\\\1", letters)
    return f"[{'^' if negated else ''}{escaped}]"
