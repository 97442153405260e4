"""Unique keys of the target that take several texts for one which an upstream with old collations keeps apart. Pure.

TiDB with ``new_collation_enabled = false`` compares every text as bytes, whatever its collation is called: 'a' and 'A' are two keys of
utf8mb4_general_ci there, and one at the target. So are 'a' and 'a ' where the target's collation pads, as utf8mb4_bin does; but not of a CHAR, in
which TiDB keeps no spaces at the end. A row is then replaced, or removed, by another one without an error.
"""

from dataclasses import dataclass

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.tableinfo import ColumnType, TableInfo
from pyspark_tidb_binlog.sinks.mysql.structure import TargetTable

_NUMBERED = frozenset({"enum", "set"})
"""Compared by their numbers."""
_BYTES = ("binary", "_nopad_bin", "_0900_bin")
"""How the names of collations end that compare all bytes; other ``_bin`` pad."""


def folded(info: TableInfo, there: TargetTable, exact: tuple[str, ...] = ("bin", "binary")) -> tuple[str, ...]:
    """The columns of unique keys of ``there``, as ``name (collation)``, that rows of ``info`` write and whose collation does not end like one of ``exact``."""
    written = {c.name.lower(): c for c in info.target_columns()}
    names = dict.fromkeys(name.lower() for key in there.unique_keys for name, _ in key.columns if name.lower() in written)
    found = []
    for name in names:
        column = there.column(name)
        if column is not None and column.kind not in _NUMBERED and column.collation:
            char = written[name].tp == ColumnType.STRING and not written[name].is_binary
            found += [] if column.collation.endswith((*exact, "_bin") if char else exact) else [column]
    return tuple(f"{c.name} ({c.collation})" for c in found)


@dataclass(frozen=True, slots=True)
class FoldedKeys:
    """What may be wrong with the unique keys of a table, in words, and what to do."""

    words: str
    known: bool
    """Whether the upstream is known to keep apart what they take for one."""


def folded_keys(info: TableInfo, there: TargetTable, apply: ApplyConfig) -> FoldedKeys | None:
    """The unique keys of ``there`` that take, or may take, rows of the upstream for one; None: none does."""
    setting = apply.upstream_new_collations
    known = setting == "false"
    if setting == "true" or apply.db_type != "mysql" or not (columns := folded(info, there, _BYTES) if known else folded(info, there)):
        return None
    what = f"the target's unique keys over {', '.join(columns)} take texts for one that differ only in case or accents"
    if known:
        return FoldedKeys(
            f"{what}, or in spaces at their ends, and the upstream, which has old collations, keeps them apart: rows replace or remove each other. MODIFY these columns to a "
            "NO PAD _bin collation (docs/charset-mapping.md), or set spark.upstream-new-collations = true if it has new ones",
            known=True,
        )
    return FoldedKeys(
        f"{what}, which is right only if the upstream has new collations (new_collation_enabled in mysql.tidb), and that is not known: set "
        "spark.upstream-new-collations to true or false",
        known=False,
    )
