"""The dialect of a target's DDL text, from its server and the settings. [db]

Promises: reads only.
"""

import re
from collections.abc import Sequence

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.sinks.mysql.ddl.charsets import Charset
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import Dialect, is_text_or_words
from pyspark_tidb_binlog.sinks.mysql.ddl.fit import spelled
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.structure import TargetTable, read_tables
from pyspark_tidb_binlog.sinks.mysql.target import Target


def dialect_of(session: Target, config: ApplyConfig) -> Dialect:
    """The target's dialect; depends on the version of MySQL, because 8.0.17 added its non-padding collation.

    ``upstream-new-collations = auto``: the upstream's collations are not known; who knows them has replaced it (``sinks.mysql.upstream_collations``).
    """
    nopad = config.upstream_new_collations != "true"
    if nopad and session.flavour is Flavour.MYSQL:
        numbers = [int(n) for n in re.findall(r"\d+", session.version)[:3]]
        nopad = numbers >= [8, 0, 17]
    default = Charset(config.upstream_collation.partition("_")[0], config.upstream_collation)
    return Dialect(session.flavour, default, nopad, config.upstream_new_collations == "false")


def keeping_padding(session: Target, dialect: Dialect, tables: Sequence[TableAt]) -> Dialect:
    """``dialect``, or the dialect with which one of ``tables`` was created if that keeps more values apart: its next DDL does not convert such a table."""
    stricter = [other for other in dialect.others() if other.nopad >= dialect.nopad and other.binary >= dialect.binary]
    if not stricter or dialect.flavour is Flavour.TIDB:
        return dialect
    for table in tables:
        there: TargetTable | None = None
        for column in visible(table.info):
            own = dialect.charset(column.charset, column.collate)
            unlike_own = [other for other in stricter if other.charset(column.charset, column.collate) != own]
            if is_text_or_words(column) and unlike_own:
                there = there or read_tables(session, [(table.schema, table.name)]).get((table.schema, table.name))
                shown = there.column(column.name) if there else None
                found = [
                    o
                    for o in unlike_own
                    if shown and spelled(o.charset(column.charset, column.collate).collate) == spelled(shown.collation)
                ]
                if found:
                    # The least strict of those that the column shows: another column may show more.
                    return keeping_padding(session, found[-1], tables)
    return dialect


def folds_names(session: Target) -> bool:
    """Whether it stores names of tables in lower case."""
    ((how,),) = session.query("SELECT @@lower_case_table_names")
    return int(how) == 1
