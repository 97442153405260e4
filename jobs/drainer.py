"""``./spark-submit.sh drainer``: the replication stream, until it is stopped. [spark]

The data path: ``binlog_source/stream.py`` (pump -> source -> pair) -> ``sinks/apply.py`` (explode -> decode -> plan -> apply) ->
``sinks/mysql/state_table.py`` and ``sinks/delta/checkpoint_table.py`` (checkpoint); ``jobs/stream/replication.py`` connects them.
"""

from collections.abc import Sequence

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.check import preflight
from pyspark_tidb_binlog.jobs.entry.cli import config_of
from pyspark_tidb_binlog.jobs.entry.drainer_options import BootstrapRequest, drainer_options
from pyspark_tidb_binlog.jobs.entry.signals import stop_on_signals
from pyspark_tidb_binlog.jobs.spark.spark_session import build_session
from pyspark_tidb_binlog.jobs.stream.recovery import recover_without_upstream
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.jobs.stream.reporter import reporter_of


def main(argv: Sequence[str]) -> int:
    """Replicate until Ctrl-C, SIGTERM or ``spark.ending-commit-ts``."""
    stop = stop_on_signals()
    given = drainer_options().parsed(argv)
    if given.check:
        return preflight.report(given)
    requested = BootstrapRequest.of(given)
    config = config_of(DrainerConfig, given)
    recover_without_upstream(config, stop)
    spark = build_session("tidb-binlog drainer", delta=config.apply.db_type == "lake")
    reporter = reporter_of(lambda: replication.progress(), given, f"drainer {config.apply.drainer}", panel=bool(requested))
    replication = Replication(spark, config, stop, requested, say=reporter.say)
    # The stream ends first, so that the summary counts its last batch.
    with reporter, replication:
        if replication.wait(stop, config.source.ending_commit_ts):
            reporter.say(f"reached spark.ending-commit-ts {config.source.ending_commit_ts}")
    return 0
