"""Checks our tables at the target: our layout, an engine with transactions, one row for each key. [db]

``CREATE TABLE IF NOT EXISTS`` keeps an existing table, even if another program, a restore or an older server has made it otherwise. Without
transactions, a rollback takes the data back but not the row that describes it, and the retry counts the data as written. Without its key, REPLACE
adds a row, and the oldest row is read. The tables named ``spark_…`` share one layout, whose number is each table's COMMENT.

Promises: reads only; a table that does not exist, or that the account may not see, has no fault.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.mysql.dialect import table_name
from pyspark_tidb_binlog.sinks.mysql.structure import TargetTable, read_tables, with_transactions
from pyspark_tidb_binlog.sinks.mysql.target import Target
from pyspark_tidb_binlog.sinks.routing.table_filter import MARK_TABLE

LAYOUT = 4
"""The layout of our tables: columns, keys, and what is in them."""
_CHECKPOINT = ("clusterID",)
_KEYS = {
    "spark_checkpoint": _CHECKPOINT,
    "spark_lease": ("cluster_id",),
    "spark_state": ("cluster_id", "name"),
    "spark_ddl": ("cluster_id", "job_id"),
    "spark_bootstrap": ("cluster_id", "table_schema", "table_name", "unit"),
    MARK_TABLE: ("id", "channel_id"),
}
"""The key of each table; any other table is a table of checkpoints."""
MADE = tuple(name for name in _KEYS if name != MARK_TABLE)
"""Those in the checkpoint schema that are ours alone."""


@dataclass(frozen=True, slots=True)
class TableFault:
    """What one of our tables lacks."""

    table: str
    what: str
    todo: str
    """What an operator does about it."""


def made_with(name: str, charset: str = "") -> str:
    """The options of the table ``name`` in its CREATE TABLE: the layout of one that is ours alone."""
    return f"ENGINE=InnoDB{charset}" + (f" COMMENT='{_comment(LAYOUT)}'" if name.lower() in MADE else "")


def faults(session: Target, schema: str, names: Iterable[str]) -> Iterator[TableFault]:
    """What is wrong with those of our tables that there are."""
    wanted = list(dict.fromkeys(names))
    found = read_tables(session, ((schema, name) for name in wanted))
    for name in wanted:
        if (there := found.get((schema, name))) is not None:
            label = table_name(there.schema, there.name)
            yield from _another_layout(label, there) if name.lower() in MADE else ()
            yield from _faults(label, there, _KEYS.get(name, _CHECKPOINT))


def require_sound(session: Target, schema: str, *names: str) -> None:
    """Check tables of ours after they were created.

    Raises:
        ApplyError: a table has another layout, or cannot hold what its rows promise; the text says what to do.
    """
    for fault in faults(session, schema, names):
        raise ApplyError(
            f"{fault.table} at the target {fault.what}. Nothing is written. With every Drainer of this target stopped, {fault.todo}"
        )


def _another_layout(label: str, there: TargetTable) -> Iterator[TableFault]:
    if there.comment != _comment(LAYOUT):
        what = f"has the comment {there.comment!r}, but this release reads and writes only tables with the comment {_comment(LAYOUT)!r}"
        copied = f". Or, if the table was copied without its comment, execute ALTER TABLE {label} COMMENT='{_comment(LAYOUT)}'"
        yield TableFault(label, what, "start the release that made the table" + ("" if there.comment else copied))


def _comment(layout: int) -> str:
    return f"layout {layout}"


def _faults(label: str, there: TargetTable, key: tuple[str, ...]) -> Iterator[TableFault]:
    if not there.transactional:
        what = (
            f"is in engine {there.engine}, which has no transactions: a rollback would take the data back but not the record of it, "
            "and that data would be lost"
        )
        yield TableFault(label, what, f"execute {with_transactions(label)}, and start again")
    if not any(_is(k.columns, key) for k in there.unique_keys):
        names = ", ".join(map(quote_name, key))
        what = f"has no primary key ({names}): a row would be added instead of replaced, and the next start would read the oldest row"
        yield TableFault(
            label,
            what,
            f"execute ALTER TABLE {label} ADD PRIMARY KEY ({names}) (if the server finds duplicate keys, keep the newest row of each key), and start again",
        )


def _is(columns: tuple[tuple[str, int], ...], key: tuple[str, ...]) -> bool:
    """Whether a unique key is over exactly these columns, whole."""
    return {name.lower() for name, _ in columns} == {name.lower() for name in key} and all(length < 0 for _, length in columns)
