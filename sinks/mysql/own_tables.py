"""Whether our tables at the target can hold what their rows promise: in an engine with transactions, one row for each key. [db]

A table is made with ``CREATE TABLE IF NOT EXISTS``, which leaves one alone that another program, a restore or an older server has made otherwise. A row of
a table without transactions stays where the data that it describes is rolled back, so that the retry takes it for written; without its key REPLACE
adds a row, and the oldest one is read.

Promises: reads only; a table that is not there, or that the account may not see, has no fault.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.mysql.dialect import table_name
from pyspark_tidb_binlog.sinks.mysql.structure import Queries, TargetTable, read_tables, with_transactions
from pyspark_tidb_binlog.sinks.routing.own_schemas import MARK_TABLE

_CHECKPOINT = ("clusterID",)
_KEYS = {
    "spark_lease": ("cluster_id",),
    "spark_progress": ("cluster_id", "from_ts", "to_ts", "part", "parts", "phase"),
    "spark_ddl": ("cluster_id", "job_id"),
    "spark_rows": ("cluster_id", "lane"),
    "spark_kept": ("cluster_id", "to_ts", "part", "row_hash"),
    "spark_bootstrap": ("cluster_id", "table_schema", "table_name", "unit"),
    MARK_TABLE: ("id", "channel_id"),
}
"""The key of each table; any other one is a table of checkpoints."""
MADE = tuple(name for name in _KEYS if name != MARK_TABLE)
"""Those in the checkpoint schema that have one name everywhere."""


@dataclass(frozen=True, slots=True)
class TableFault:
    """What one of our tables lacks."""

    table: str
    what: str
    todo: str
    """The statement that mends it."""


def faults(session: Queries, schema: str, names: Iterable[str]) -> Iterator[TableFault]:
    """What is wrong with those of our tables that there are."""
    wanted = list(names)
    found = read_tables(session, ((schema, name) for name in wanted))
    for name in wanted:
        if (there := found.get((schema, name))) is not None:
            yield from _faults(table_name(there.schema, there.name), there, _KEYS.get(name, _CHECKPOINT))


def require_sound(session: Queries, schema: str, *names: str) -> None:
    """Check tables of ours after they were made.

    Raises:
        ApplyError: one of them cannot hold what its rows promise; the text has the statement that mends it.
    """
    for fault in faults(session, schema, names):
        raise ApplyError(
            f"{fault.table} at the target {fault.what}. Nothing is written. With every Drainer of this target stopped, execute {fault.todo}, and start again"
        )


def _faults(label: str, there: TargetTable, key: tuple[str, ...]) -> Iterator[TableFault]:
    if not there.transactional:
        what = (
            f"is in engine {there.engine}, which has no transactions: its rows would stay where the data that they describe is rolled back, "
            "and that data would be lost"
        )
        yield TableFault(label, what, with_transactions(label))
    if not any(_is(k.columns, key) for k in there.unique_keys):
        names = ", ".join(map(quote_name, key))
        what = f"has no primary key ({names}): a row would be added instead of replaced, and the oldest one would count at the next start"
        yield TableFault(
            label,
            what,
            f"ALTER TABLE {label} ADD PRIMARY KEY ({names}) (where it refuses rows with equal keys, keep the newest one of each)",
        )


def _is(columns: tuple[tuple[str, int], ...], key: tuple[str, ...]) -> bool:
    """Whether a unique key is over exactly these columns, whole."""
    return {name.lower() for name, _ in columns} == {name.lower() for name in key} and all(length < 0 for _, length in columns)
