"""The structure of tables as the target has it, which a relay log does not say. [db]

Promises: reads only; each table is read once, until ``forget``.
"""

from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.mysql.target import Target
from pyspark_tidb_binlog.sinks.relay.relayed_rows import ShapeColumn, ShapeKey, TargetShape

_COMPUTED = ("VIRTUAL GENERATED", "STORED GENERATED", "PERSISTENT")


class TargetShapes:
    """The shapes of the tables that are asked for."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], TargetShape] = {}

    def of(self, session: Target, schema: str, table: str, commit_ts: int) -> TargetShape:
        """The shape of a table, of which the transaction ``commit_ts`` has rows.

        Raises:
            ApplyError: the target has no such table.
        """
        name = schema, table
        if name not in self._known:
            columns = _columns(session, schema, table)
            if not columns:
                raise ApplyError(
                    f"the relay log has rows of {schema}.{table} at commit_ts {commit_ts}, but the target has no such table. Create it as it was "
                    f"there, or leave the transaction out with syncer.ignore-txn-commit-ts = [{commit_ts}], and start again"
                )
            self._known[name] = TargetShape(columns, _keys(session, schema, table))
        return self._known[name]

    def forget(self) -> None:
        """A DDL was executed."""
        self._known.clear()


def _columns(session: Target, schema: str, table: str) -> tuple[ShapeColumn, ...]:
    rows = session.query(
        "SELECT column_name, column_type, is_nullable, collation_name, extra FROM information_schema.columns "
        "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
        [schema, table],
    )
    return tuple(
        ShapeColumn(str(name), "unsigned" in str(kind).lower(), str(nullable) == "NO", str(collate or ""))
        for name, kind, nullable, collate, extra in rows
        if not any(word in str(extra).upper() for word in _COMPUTED)
    )


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
