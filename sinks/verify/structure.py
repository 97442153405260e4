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
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, ColumnFlag, ColumnInfo, ColumnType, IndexColumn, IndexInfo, TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import RecordedDdl
from pyspark_tidb_binlog.sinks.mysql.ddl.presence import has_key
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import LOBS, column_definition, index_definition
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect, is_text_or_words, spelled
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, table_name
from pyspark_tidb_binlog.sinks.mysql.exactness import holds_less, misfit
from pyspark_tidb_binlog.sinks.mysql.folded_keys import folded_keys
from pyspark_tidb_binlog.sinks.mysql.structure import TargetColumn, TargetKey, TargetTable
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
_TIMES = frozenset({*_MOMENTS, ColumnType.TIME})
_WORDED = frozenset({"enum", "set"})
_NUMBERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "decimal"})
_DIGITS = Context(prec=100)
_ESCAPES = re.compile(r"[\\']| +$")
_TEXTS = _WORDED | {"char", "varchar"}


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
    info, label = info_of(upstream, wanted, standard.upstream), table_name(target.schema, target.name)
    there = {c.name.lower(): c for c in target.columns}
    ours = {c.name.lower(): c for c in upstream.columns}

    def differing(name: str, words: str, mend: str = "", *, compared: bool = True) -> NotCompared:
        why = reason(standard.recorded, (upstream.schema, upstream.name), (target.schema, target.name), name)
        if not why and not compared and standard.apply.partial_columns:
            why = "the settings allow that"
        return NotCompared(f"{words}: {why}" if why else words, bool(why), "" if why else mend, compared)

    for column in info.columns:
        name = column.name.lower()
        definition = column_definition(column, info, standard.dialect, explicit=True) if _is_known(column, ours[name]) else ""
        if name not in there:
            yield differing(
                name, f"{column.name}: the target lacks it", definition and f"ALTER TABLE {label} ADD COLUMN {definition}", compared=False
            )
        elif not column.generated and not there[name].generated and form_of_both(ours[name], there[name]) is not None:
            for words, by_intent in _column_unlike(column, info, there[name], standard):
                mend = definition and f"ALTER TABLE {label} MODIFY COLUMN {definition}"
                yield NotCompared(words, True, compared=True) if by_intent else differing(name, words, mend)
            was, now = _literal(ours[name], standard.upstream), _literal(there[name], standard.dialect.flavour)
            if was is not None and not _same_default(was, now) and (now is not None or there[name].default is None):
                shown = quote_string(str(was))
                mend = f"ALTER TABLE {label} ALTER COLUMN {quote_name(column.name)} SET DEFAULT {shown}"
                yield differing(name, f"column {column.name} has another default than {shown}", mend)
    indexes = {index.name: index for index in info.indexes}
    for key in (*upstream.unique_keys, *upstream.other_keys):
        names = [name.lower() for name, _ in key.columns]
        if key.name in indexes and all(name in there for name in names) and not _has(key, indexes[key.name], target, info):
            clause = index_definition(indexes[key.name], standard.dialect, info)
            yield replace(
                differing(key.name, f"key {key.name} missing or different", f"ALTER TABLE {label} ADD {clause}", compared=False),
                compared=True,
            )
        elif "" in names and target.key(key.name) is None:
            words = f"key {key.name}, which is over an expression, is missing"
            able = standard.dialect.flavour is not Flavour.MARIADB
            yield differing(key.name, words) if able else NotCompared(f"{words}: a MariaDB has none", True, compared=True)
    if (folded := folded_keys(info, target, standard.apply, standard.dialect)) is not None:
        yield NotCompared(f"{folded.what}: {folded.todo}", by_intent=not folded.known, compared=True)


def _column_unlike(column: ColumnInfo, info: TableInfo, there: TargetColumn, standard: Standard) -> Iterator[tuple[str, bool]]:
    """Yield what differs, and whether the target's column holds all values still."""
    dialects = [replace(standard.dialect, nopad=nopad, binary=binary) for nopad in (True, False) for binary in (True, False)]
    wanted = standard.dialect.column_charset(column, info)
    # What each setting of the upstream's collations makes: existing tables keep theirs when it changes.
    known = [*(d.column_charset(column, info) for d in dialects), *(d.charset(column.charset, column.collate) for d in dialects)]
    own = replace(standard.dialect, nopad=False).charset(column.charset, column.collate).charset
    if words := misfit(there, column, None, wanted, own):
        yield f"column {column.name} is {words}", not holds_less(there, column, {wanted.charset, own})
    elif is_text_or_words(column) and spelled(there.collation) not in {spelled(one.collate) for one in known}:
        yield f"column {column.name} is {there.collation} instead of {wanted.collate}", True


def _has(key: TargetKey, index: IndexInfo, target: TargetTable, info: TableInfo) -> bool:
    if has_key(index, target, info):
        return True
    if key.unique:
        return any(has_key(replace(index, name=one.name, primary=False, unique=True), target, info) for one in target.unique_keys)
    names = [name.lower() for name, _ in key.columns]
    return any([name.lower() for name, _ in one.columns[: len(names)]] == names for one in (*target.unique_keys, *target.other_keys))


def info_of(table: TargetTable, wanted: Collection[str], flavour: Flavour) -> TableInfo:
    """The table as TiDB's infos have it, as far as information_schema shows that: without keys over expressions."""
    columns = tuple(_info(place, c, flavour) for place, c in enumerate(c for c in table.columns if not wanted or c.name.lower() in wanted))
    places = {c.name.lower(): c.offset for c in columns}
    keys = [k for k in (*table.unique_keys, *table.other_keys) if all(name.lower() in places for name, _ in k.columns)]
    indexes = tuple(
        IndexInfo(
            number,
            k.name,
            tuple(IndexColumn(n, places[n.lower()], length) for n, length in k.columns),
            k.unique,
            k.primary,
            PUBLIC,
            False,
            "",
        )
        for number, k in enumerate(keys, 1)
    )
    charset = table.collation.partition("_")[0]
    return TableInfo(0, table.name, charset, table.collation, columns, indexes, False, False, (), False, False, 0, "")


def _info(place: int, column: TargetColumn, flavour: Flavour) -> ColumnInfo:
    tp = _TYPES.get(column.kind, ColumnType.UNSPECIFIED)
    numbers = [] if column.words else [int(n) for n in re.findall(r"\d+", column.type.partition("(")[2].partition(")")[0])]
    flen, decimal, *_ = (-1, *numbers, -1) if tp in _TIMES else (*numbers, -1, -1)
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
