"""The dialect of a target's DDL text, from its server and the settings. [db]

Promises: reads at most one variable of the server.
"""

import re

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.sinks.mysql.ddl.charsets import Charset
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import Dialect
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
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


def folds_names(session: Target) -> bool:
    """Whether it stores names of tables in lower case."""
    ((how,),) = session.query("SELECT @@lower_case_table_names")
    return int(how) == 1
