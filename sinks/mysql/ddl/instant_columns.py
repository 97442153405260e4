"""Tables of a MySQL whose columns were added or dropped without rewriting their rows: MySQL refuses EXCHANGE PARTITION with such a table. [db]

Promises: reads only. It names the tables to rebuild before the intent of the exchange is recorded: a rebuilt table has another id, and
after a crash the ids show whether the exchange ran.
"""

import logging

from pyspark_tidb_binlog.schemas.errors import ApplyError, RetryableApplyError
from pyspark_tidb_binlog.schemas.history import Job, JobType
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import quoted
from pyspark_tidb_binlog.sinks.mysql.ddl.snapshots import SchemaSnapshot
from pyspark_tidb_binlog.sinks.mysql.ddl.text import Subject
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.target import Target

_log = logging.getLogger(__name__)

_DIFFERENT_OPTION = 1731
_INSTANT = "INSTANT"
"""In the server's words: ``Non matching attribute 'INSTANT COLUMN(s)' between partition and table``; else they name another attribute."""


def rebuilds(session: Target, subject: Subject, now: SchemaSnapshot) -> tuple[str, ...]:
    """The statements after which MySQL can exchange the job's partition; ``now``: the target's tables as they are."""
    if subject.job.type != JobType.EXCHANGE_PARTITION or session.flavour is not Flavour.MYSQL or not now.ids_known:
        return ()
    tables = [(quoted(t.schema, t.name), now.objects.get(f"{t.schema}.{t.name}")) for t in subject.before]
    ids = sorted({table_id for _, there in tables if there for table_id in there.ids.values()})
    if not ids:
        return ()
    try:
        rows = session.query(
            "SELECT table_id FROM information_schema.innodb_tables WHERE (instant_cols > 0 OR total_row_versions > 0) "
            f"AND table_id IN ({', '.join(map(str, ids))})"
        )
    except RetryableApplyError:
        raise
    except ApplyError as error:
        _log.debug("cannot read which tables have instant columns: %s", error)  # a server before 8.0.29
        return ()
    instant = {int(table_id) for (table_id,) in rows}
    return tuple(f"ALTER TABLE {name} FORCE" for name, there in tables if there and instant & set(there.ids.values()))


def rebuild_by_hand(job: Job, error: ApplyError) -> str:
    """What to do if the server has refused an exchange because the tables differ, in instant columns or otherwise; empty for another job or error."""
    if job.type != JobType.EXCHANGE_PARTITION or error.errno != _DIFFERENT_OPTION:
        return ""
    if _INSTANT in error.words.upper():
        return (
            "Grant PROCESS to the target's user, and start again. The start then rebuilds both tables before the exchange (ALTER TABLE ... FORCE), which a "
            "server of 8.0.29 or later needs after ADD COLUMN and DROP COLUMN"
        )
    return "Make this option equal in the two tables at the target (SHOW CREATE TABLE shows both; ALTER TABLE only one of them), and start again"
