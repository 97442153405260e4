"""Tables as the target has them, for rows from a file that carries no table infos: a relay log, or a file sink's. [db]

    names and types of the file + structure at the target (``TargetShape``) -> TableAt

Promises: reads only; each table is read once, until ``forget``. A column that the target lacks, or computes itself, is left out; rows are sought by
the target's unique keys.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.events import SchemaVersion
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, WHOLE_COLUMN, ColumnFlag, ColumnInfo, IndexColumn, IndexInfo, TableInfo
from pyspark_tidb_binlog.sinks.mysql.target import Target

_COMPUTED = ("VIRTUAL GENERATED", "STORED GENERATED", "PERSISTENT")
_NO_SUCH_TABLE = 1146


@dataclass(frozen=True, slots=True)
class ShapeColumn:
    """A column at the target that statements may write."""

    name: str
    unsigned: bool
    not_null: bool
    collate: str


@dataclass(frozen=True, slots=True)
class ShapeKey:
    """A unique key at the target."""

    name: str
    columns: tuple[tuple[str, int], ...]
    """Name and length of the prefix (-1 = the whole column)."""


@dataclass(frozen=True, slots=True)
class TargetShape:
    """A table as the target has it."""

    columns: tuple[ShapeColumn, ...]
    """Those that it does not compute."""
    keys: tuple[ShapeKey, ...]
    """The primary key first."""
    computed: frozenset[str] = frozenset()
    """Names of those that it computes, in lower case."""


@dataclass(frozen=True, slots=True)
class WrittenColumn:
    """A column as a file of binlogs describes it."""

    name: str
    tp: int
    """Code of its type."""
    binary: bool
    """Whether its charset is binary."""
    flen: int = -1
    decimal: int = -1


def table_there(schema: str, name: str, written: Iterable[WrittenColumn], shape: TargetShape) -> TableAt:
    """The table with the columns that both the file and the target have, in the target's order, and the target's keys of these."""
    described = {c.name.lower(): c for c in written}
    columns = tuple(
        _column(described[there.name.lower()], there, place)
        for place, there in enumerate(c for c in shape.columns if c.name.lower() in described)
    )
    offsets = {c.name.lower(): c.offset for c in columns}
    indexes = tuple(
        _index(number, key, offsets) for number, key in enumerate(shape.keys) if all(name.lower() in offsets for name, _ in key.columns)
    )
    info = TableInfo(
        id=0,
        name=name,
        charset="utf8mb4",
        collate="",
        columns=columns,
        indexes=indexes,
        pk_is_handle=False,
        is_common_handle=False,
        partitions=(),
        is_view=False,
        is_sequence=False,
        temp_table_type=0,
        comment="",
    )
    return TableAt(0, schema, name, info, SchemaVersion(0), (), dropping=False)


def _column(told: WrittenColumn, there: ShapeColumn, place: int) -> ColumnInfo:
    flag = (ColumnFlag.NOT_NULL if there.not_null else 0) | (ColumnFlag.UNSIGNED if there.unsigned else 0)
    return ColumnInfo(
        id=place + 1,
        name=there.name,
        offset=place,
        tp=told.tp,
        flag=int(flag),
        flen=told.flen,
        decimal=told.decimal,
        charset="binary" if told.binary else "utf8mb4",
        collate=there.collate or "binary",
        elems=(),
        origin_default=None,
        origin_default_bit=None,
        default=None,
        default_bit=None,
        default_is_expr=False,
        generated_expr="",
        generated_stored=False,
        hidden=False,
        state=PUBLIC,
        comment="",
    )


def _index(number: int, key: ShapeKey, offsets: Mapping[str, int]) -> IndexInfo:
    columns = tuple(IndexColumn(name, offsets[name.lower()], length if length > 0 else WHOLE_COLUMN) for name, length in key.columns)
    return IndexInfo(number + 1, key.name, columns, unique=True, primary=key.name == "PRIMARY", state=PUBLIC, invisible=False, comment="")


class TargetShapes:
    """The shapes of the tables that are asked for."""

    def __init__(self, file: str, way_out: str) -> None:
        """For errors: what the rows come from, and how a transaction is left out of it, with ``{commit_ts}`` in its place."""
        self._file = file
        self._way_out = way_out
        self._known: dict[tuple[str, str], TargetShape] = {}

    def of(self, session: Target, schema: str, table: str, commit_ts: int) -> TargetShape:
        """The shape of a table, of which the transaction ``commit_ts`` has rows.

        Raises:
            ApplyError: the target has no such table.
        """
        name = schema, table
        if name not in self._known:
            columns, computed = _columns(session, schema, table)
            if not columns:
                raise ApplyError(
                    f"{self._file} has rows of {schema}.{table} at commit_ts {commit_ts}, but the target has no such table. Create it as it was "
                    f"then, or {self._way_out.format(commit_ts=commit_ts)}, and start again",
                    _NO_SUCH_TABLE,
                )
            self._known[name] = TargetShape(columns, _keys(session, schema, table), computed)
        return self._known[name]

    def forget(self) -> None:
        """A DDL was executed."""
        self._known.clear()


def _columns(session: Target, schema: str, table: str) -> tuple[tuple[ShapeColumn, ...], frozenset[str]]:
    """Those that are written, and the names of those that the target computes."""
    rows = session.query(
        "SELECT column_name, column_type, is_nullable, collation_name, extra FROM information_schema.columns "
        "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
        [schema, table],
    )
    written: list[ShapeColumn] = []
    computed = set()
    for name, kind, nullable, collate, extra in rows:
        if any(word in str(extra).upper() for word in _COMPUTED):
            computed.add(str(name).lower())
        else:
            written.append(ShapeColumn(str(name), "unsigned" in str(kind).lower(), str(nullable) == "NO", str(collate or "")))
    return tuple(written), frozenset(computed)


def _keys(session: Target, schema: str, table: str) -> tuple[ShapeKey, ...]:
    """The unique keys; one over an expression has no columns, and is left out."""
    rows = session.query(
        "SELECT index_name, column_name, sub_part FROM information_schema.statistics "
        "WHERE table_schema = %s AND table_name = %s AND non_unique = 0 ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index",
        [schema, table],
    )
    found: dict[str, list[tuple[str, int]]] = {}
    for index, column, length in rows:
        found.setdefault(str(index), []).append(("" if column is None else str(column), int(length or -1)))
    return tuple(ShapeKey(name, tuple(columns)) for name, columns in found.items() if all(column for column, _ in columns))
