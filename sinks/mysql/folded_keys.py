"""Unique keys of the target that treat texts as equal that the upstream keeps apart. Pure.

    a table made without a named collation  has the server's: 'a' and 'A' are one key in utf8mb4_general_ci, but two in the upstream's utf8mb4_bin
    an upstream with old collations         compares bytes, whatever its collations are called (``new_collation_enabled = false``)
    padding                                 'a' and 'a ' are one key where the target's collation pads; but not in a CHAR, for which TiDB stores no such blanks

Then a row replaces or removes another row without an error. A key is safe if it contains a key that tells all rows apart:
UNIQUE (id, k) beside PRIMARY KEY (id).
"""

from collections.abc import Set

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.history import FoldedKeys
from pyspark_tidb_binlog.schemas.tableinfo import WHOLE_COLUMN, ColumnInfo, ColumnType, TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import column_definition
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Charset, Dialect
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, is_bytes, is_text, table_name
from pyspark_tidb_binlog.sinks.mysql.structure import TargetColumn, TargetKey, TargetTable

LETTERS, BLANKS = "case or accents", "blanks at the end"
"""What a collation may take for no difference."""
_BYTES = "binary"
_NUMBERED = frozenset({"enum", "set"})
"""Compared by their numbers."""
_UNPADDED = frozenset({"nopad", "0900"})
_UCA = frozenset({"0900", "uca1400"})
"""Versions of one order; where MariaDB lacks the first, it uses the second."""
_SENSITIVE = frozenset({"as", "cs", "ks"})


def taken_for_one(there: str, upstream: str) -> frozenset[str]:
    """What the collation ``there`` takes for no difference (``LETTERS``, ``BLANKS``) and ``upstream`` does not, by their names."""
    order, own = _order(there), _order(upstream)
    coarser = bool(order[0]) and (order[0] != own[0] or not order[1] >= own[1])
    return frozenset(([LETTERS] if coarser else []) + ([BLANKS] if _pads(there) and not _pads(upstream) else []))


def _order(collation: str) -> tuple[frozenset[str], frozenset[str]]:
    """The name of the order of letters, empty for that of their bytes, and what it is sensitive to."""
    words = frozenset(collation.lower().split("_")[1:])
    if not words or "bin" in words:
        return frozenset(), _SENSITIVE
    named = words - _SENSITIVE - _UCA - {"nopad", "ai", "ci"}
    return named | ({"uca"} if words & _UCA else set()), words & _SENSITIVE


def _pads(collation: str) -> bool:
    return collation.lower() != _BYTES and _UNPADDED.isdisjoint(collation.lower().split("_"))


def folded_keys(info: TableInfo, there: TargetTable, apply: ApplyConfig, dialect: Dialect) -> FoldedKeys | None:
    """The unique keys of ``there`` that treat, or may treat, different rows of the upstream as equal; None if there are none.

    Args:
        info: the upstream's table.
        there: the target's.
        apply: whether the upstream has new collations, and its default.
        dialect: of the target, whose collations mend a key.
    """
    if apply.db_type != "mysql":
        return None
    upstream = {c.name.lower(): c for c in info.public_columns() if not c.hidden and (is_text(c) or is_bytes(c))}
    names = dict.fromkeys(name.lower() for key in there.unique_keys for name, _ in key.columns)
    columns = [(upstream[n], c) for n in names if n in upstream and (c := there.column(n)) and c.collation and c.kind not in _NUMBERED]
    found, known = [(own, c, folded) for own, c in columns if (folded := _folded(own, c.collation, apply))], True
    keys = _meeting(info, there, {c.name.lower() for _, c, _ in found})
    if not keys and apply.upstream_new_collations == "auto":
        # Of blanks nothing is said: an upstream that nobody has asked most likely pads, too.
        old = [(own, c, taken_for_one(c.collation, _BYTES) & {LETTERS}) for own, c in columns]
        found, known = [one for one in old if one[2]], False
        keys = _meeting(info, there, {c.name.lower() for _, c, _ in found})
    if not keys:
        return None
    found = [one for one in found if any(one[1].name.lower() in key.names for key in keys)]
    named = tuple(key.name for key in keys)
    shown = ", ".join(f"{c.name} ({c.collation} there, {_shown(own, apply)} upstream)" for own, c, _ in found)
    what = (
        f"a unique key of the target ({', '.join(named)}) takes texts for equal that differ {'upstream' if known else 'in an upstream with old collations'}"
        f", in {shown}. Rows that differ only in "
        f"{' or in '.join(sorted(frozenset().union(*(folded for *_, folded in found)), reverse=True))} replace or remove each other"
    )
    if known:
        return FoldedKeys(named, what, _mended(info, there, [(own, c) for own, c, _ in found], apply, dialect), known)
    return FoldedKeys(
        named, what, "whether the upstream has old collations is not known: set spark.upstream-new-collations to true or false", known
    )


def _meeting(info: TableInfo, there: TargetTable, folded: Set[str]) -> tuple[TargetKey, ...]:
    """The unique keys in which rows of the upstream may meet, because the columns ``folded`` take several texts for one."""
    keys = {key.names for key in there.unique_keys}
    certain = [frozenset(c.name.lower() for c in key) for key in info.unique_keys() if all(c.not_null for c in key)]
    apart = [names for names in certain if names in keys and names.isdisjoint(folded)]
    whole = {key.name: {name.lower() for name, length in key.columns if length == WHOLE_COLUMN} for key in there.unique_keys}
    return tuple(key for key in there.unique_keys if key.names & folded and not any(names <= whole[key.name] for names in apart))


def _collation(column: ColumnInfo, apply: ApplyConfig) -> str:
    """The collation by which the upstream compares the texts of ``column``."""
    if apply.upstream_new_collations == "false":
        return _BYTES
    default = Charset(apply.upstream_collation.partition("_")[0], apply.upstream_collation)
    return Dialect(Flavour.TIDB, default).charset(column.charset, column.collate).collate


def _shown(column: ColumnInfo, apply: ApplyConfig) -> str:
    return "bytes" if apply.upstream_new_collations == "false" else _collation(column, apply)


def _folded(column: ColumnInfo, there: str, apply: ApplyConfig) -> frozenset[str]:
    without_blanks = column.tp == ColumnType.STRING and is_text(column)
    return taken_for_one(there, _collation(column, apply)) - ({BLANKS} if without_blanks else set())


def _mended(
    info: TableInfo, there: TargetTable, columns: list[tuple[ColumnInfo, TargetColumn]], apply: ApplyConfig, dialect: Dialect
) -> str:
    if any(_folded(own, dialect.column_charset(own, info).collate, apply) for own, _ in columns):
        return "this server has no collation that keeps the texts of such a key apart (docs/charset-mapping.md)"
    # The target's own length: MODIFY to a shorter one fails, or cuts values.
    changes = ", ".join(
        f"MODIFY {column_definition(own, info, dialect, explicit=True, type_=c.type.upper() if is_text(own) else '')}" for own, c in columns
    )
    setting = (
        ", or set spark.upstream-new-collations = true if the upstream has new ones" if apply.upstream_new_collations == "false" else ""
    )
    return f"execute ALTER TABLE {table_name(there.schema, there.name)} {changes}, and copy the table again with --bootstrap if rows may be lost{setting}"
