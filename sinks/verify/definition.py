"""Whether a table of the target is defined so that it holds what the upstream's holds. Pure.

    the target lacks a column or a key       not as it should be, with the ALTER TABLE that adds it
    a type that holds less, or rounds        not as it should be: INT for BIGINT
    NOT NULL for NULL                        not as it should be
    a charset with fewer characters          not as it should be
    a unique key that folds texts            not as it should be (``folded_keys``)
    another literal as default               not as it should be: an application would get it after a failover
    each of them, and a DDL is recorded      by intent, in the words of the record
    a type that holds more, NULL for NOT     by intent: a nearest form, or somebody's own
    NULL, another collation elsewhere
    what only the target has, orders         nothing

The code that judges whether a DDL has run judges here, too (``exactness``, ``presence``). It knows the upstream by TiDB's infos, so ``info_of`` makes one of what
information_schema shows. A key is there if its columns are the first ones of any key, and of a unique key if a unique key has just these: names do not count.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name, quote_string
from pyspark_tidb_binlog.schemas.table_changes import AddColumn, AddKey
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, ColumnFlag, ColumnInfo, ColumnType, IndexColumn, IndexInfo, TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.alteration import Alteration
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import RecordedDdl
from pyspark_tidb_binlog.sinks.mysql.ddl.presence import MissingChange, Presence, has_key
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import LOBS, column_definition, index_definition
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect, is_text_or_words, spelled
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, table_name
from pyspark_tidb_binlog.sinks.mysql.exactness import holds_less
from pyspark_tidb_binlog.sinks.mysql.folded_keys import folded_keys
from pyspark_tidb_binlog.sinks.mysql.structure import TargetColumn, TargetTable
from pyspark_tidb_binlog.sinks.verify.canonical import form_of_both
from pyspark_tidb_binlog.sinks.verify.explanation import reason

_MOMENTS = frozenset({ColumnType.DATETIME, ColumnType.TIMESTAMP})
_ZEROFILL = 1 << 6
_TYPES = {
    **{tp.name.lower(): tp for tp in ColumnType},
    **{tp.name.lower().replace("blob", "text"): tp for tp in LOBS},
    **{"char": ColumnType.STRING, "binary": ColumnType.STRING, "varbinary": ColumnType.VARCHAR},
    **{"integer": ColumnType.INT, "numeric": ColumnType.DECIMAL, "real": ColumnType.DOUBLE},
}
_NUMBERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "decimal"})
_TEXTS = frozenset({"char", "varchar", "enum", "set"})
_DIGITS = Context(prec=100)
"""More than a DECIMAL has."""
_ESCAPES = re.compile(r"[\\']| +$")


@dataclass(frozen=True, slots=True)
class NotCompared:
    """Why a table, or a column of it, is not compared; or how its definition differs."""

    words: str
    by_intent: bool
    """False: the target should have it, so something differs."""
    mend: str = ""
    """The DDL that mends the definition at the target; empty: it is not known, or none is needed."""
    compared: bool = False
    """The rows are compared all the same."""


@dataclass(frozen=True, slots=True)
class Standard:
    """By what definitions are judged."""

    apply: ApplyConfig
    dialect: Dialect
    """Of the target."""
    upstream: Flavour
    recorded: Sequence[RecordedDdl] = ()
    """DDLs that were not executed as TiDB wrote them, or not in full."""


def unlike(upstream: TargetTable, target: TargetTable, wanted: Collection[str], standard: Standard) -> Iterator[NotCompared]:
    """Yield how the target's definition differs. ``wanted``: the replicated columns, in lower case; empty: all."""
    info = info_of(upstream, wanted, standard.upstream)
    made = Alteration.of(replace(info, columns=(), indexes=()), info, "", standard.dialect)
    assert made is not None  # no column is gone
    judge = _Judge(upstream, target, info, standard, Presence(made, target))
    for column in info.columns:
        yield from judge.column(column)
    for key in info.indexes:
        yield from judge.key(key)
    for name in [key.name for key in (*upstream.unique_keys, *upstream.other_keys) if "" in key.names and target.key(key.name) is None]:
        none = "a MariaDB has none" if standard.dialect.flavour is Flavour.MARIADB else ""
        yield judge.remark(name, MissingChange(f"key {name}, which is over an expression, is missing", "key"), allowed=none)
    if (folded := folded_keys(info, target, standard.apply, standard.dialect)) is not None:
        yield NotCompared(f"{folded.what}: {folded.todo}", by_intent=not folded.known, compared=True)


@dataclass(frozen=True, slots=True)
class _Judge:
    """Judges one table."""

    upstream: TargetTable
    target: TargetTable
    info: TableInfo
    """The upstream's, with the replicated columns."""
    standard: Standard
    presence: Presence
    """Of all that ``info`` has."""

    def column(self, column: ColumnInfo) -> Iterator[NotCompared]:
        """Yield how the target's column differs."""
        name, dialect, lack = column.name, self.standard.dialect, self.presence.lack(AddColumn(column, ""))
        ours, there = self.upstream.column(name), self.target.column(name)
        assert ours is not None
        definition = column_definition(column, self.info, dialect, explicit=True) if _is_known(column, ours) else ""
        if lack is not None and there is None:
            yield self.remark(name, lack, definition and f"ADD COLUMN {definition}")
        if there is None or column.generated or there.generated or form_of_both(ours, there) is None:
            return
        # What each setting of the upstream's collations makes: existing tables keep theirs when it changes.
        dialects = [replace(dialect, nopad=nopad, binary=binary) for nopad in (True, False) for binary in (True, False)]
        known = [c for d in dialects for c in (d.column_charset(column, self.info), d.charset(column.charset, column.collate))]
        if lack is None and is_text_or_words(column) and spelled(there.collation) not in {spelled(one.collate) for one in known}:
            wanted = dialect.column_charset(column, self.info).collate
            yield NotCompared(f"column {name} is {there.collation} instead of {wanted}", by_intent=True, compared=True)
        elif lack is not None and holds_less(there, column, {one.charset for one in known}):
            yield self.remark(name, lack, definition and f"MODIFY COLUMN {definition}")
        elif lack is not None:
            yield NotCompared(lack.words, by_intent=True, compared=True)
        was, now = _literal(ours, self.standard.upstream), _literal(there, dialect.flavour)
        if was is not None and not _same_default(was, now) and (now is not None or there.default is None):
            shown = quote_string(str(was))
            other = MissingChange(f"column {name} has another default than {shown}", "option")
            yield self.remark(name, other, f"ALTER COLUMN {quote_name(name)} SET DEFAULT {shown}")

    def key(self, key: IndexInfo) -> Iterator[NotCompared]:
        """Yield how the target's keys lack this one. If they lack one of its columns, that is named already."""
        target, names, lack = self.target, [part.name.lower() for part in key.columns], self.presence.lack(AddKey(key))
        if key.unique:
            has = any(has_key(replace(key, name=one.name), target, self.info) for one in target.unique_keys)
        else:
            begins = [[n.lower() for n, _ in one.columns[: len(names)]] for one in (*target.unique_keys, *target.other_keys)]
            has = names in begins
        if lack is not None and not has and all(map(target.column, names)):
            yield self.remark(key.name, lack, f"ADD {index_definition(key, self.standard.dialect, self.info)}")

    def remark(self, name: str, lack: MissingChange, clause: str = "", allowed: str = "") -> NotCompared:
        """A difference, which is by intent if a DDL's record has it, or it is ``allowed``: by the settings, a column or key that the target lacks."""
        target = self.target.schema, self.target.name
        if lack.kind in ("column", "key") and self.standard.apply.partial_columns:
            allowed = allowed or "sync-mode = 2 or sync-ddl = false allows that"
        why = reason(self.standard.recorded, (self.upstream.schema, self.upstream.name), target, name) or allowed
        mend = f"ALTER TABLE {table_name(*target)} {clause}" if clause and not why else ""
        return NotCompared(f"{lack.words}: {why}" if why else lack.words, bool(why), mend, compared=lack.kind != "column")


def info_of(table: TargetTable, wanted: Collection[str], flavour: Flavour) -> TableInfo:
    """The table as TiDB's infos have it, as far as information_schema shows that: without keys over expressions."""
    columns = tuple(_info(place, c, flavour) for place, c in enumerate(c for c in table.columns if not wanted or c.name.lower() in wanted))
    places = {c.name.lower(): c.offset for c in columns}
    keys = [k for k in (*table.unique_keys, *table.other_keys) if all(name.lower() in places for name, _ in k.columns)]
    parts = [tuple(IndexColumn(name, places[name.lower()], length) for name, length in k.columns) for k in keys]
    indexes = tuple(
        IndexInfo(n, k.name, of, k.unique, k.primary, PUBLIC, False, "") for n, (k, of) in enumerate(zip(keys, parts, strict=True), 1)
    )
    charset = table.collation.partition("_")[0]
    return TableInfo(0, table.name, charset, table.collation, columns, indexes, False, False, (), False, False, 0, "")


def _info(place: int, column: TargetColumn, flavour: Flavour) -> ColumnInfo:
    tp = _TYPES.get(column.kind, ColumnType.UNSPECIFIED)
    flen, decimal = (-1, column.measures[0]) if column.family in ("moment", "time") else column.measures
    flag = 0 if column.nullable else int(ColumnFlag.NOT_NULL)
    flag |= int(ColumnFlag.UNSIGNED) if column.unsigned else 0
    flag |= int(ColumnFlag.AUTO_INCREMENT) if column.auto_increment else 0
    flag |= _ZEROFILL if "zerofill" in column.type.lower() else 0
    charset, collate = (column.charset, column.collation) if column.collation else ("binary", "binary")
    default, made_of = _literal(column, flavour), "?" if column.generated else ""
    default = None if default is None else str(default)
    origin = None, None  # unknown
    return ColumnInfo(
        *(place + 1, column.name, place, tp, flag, flen, decimal, charset, collate, column.words, *origin, default, None),
        *(False, made_of, False, False, PUBLIC, ""),
    )


def _same_default(was: str | Decimal, now: str | Decimal | None) -> bool:
    """Whether a server that shows ``now`` may have been given ``was``: it rounds numbers, and escapes texts in its own way."""
    if isinstance(was, Decimal) and isinstance(now, Decimal):
        return was.quantize(now, ROUND_HALF_UP, _DIGITS) == now
    return _ESCAPES.sub("", str(was)) == _ESCAPES.sub("", str(now))


def _is_known(column: ColumnInfo, shown: TargetColumn) -> bool:
    """Whether the info defines the whole column: information_schema is not asked for what computes or updates it."""
    return not column.generated and column.tp not in _MOMENTS and (shown.default is None) == (column.default is None)


def _literal(column: TargetColumn, flavour: Flavour) -> str | Decimal | None:
    """The default, if it is a number or a short text; None: it is none, there is none, or it may be an expression."""
    text = column.default
    if text is None or column.generated:
        return None
    quoted = len(text) > 1 and text[0] == text[-1] == "'" and flavour is Flavour.MARIADB
    text = text[1:-1].replace("''", "'") if quoted else text
    if column.kind in _NUMBERS:
        try:
            return Decimal(text)
        except InvalidOperation:
            return None
    plain = quoted if flavour is Flavour.MARIADB else "(" not in text
    return text if column.kind in _TEXTS and plain else None
