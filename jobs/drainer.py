"""``./spark-submit.sh drainer``: the replication stream, until it is stopped. [spark]

The walk: ``binlog_source/stream.py`` (pump -> source -> pair) -> ``sinks/apply.py`` (explode -> decode -> plan -> apply) -> ``sinks/progress.py``
and ``sinks/delta_checkpoint.py`` (checkpoint); ``jobs/replication.py`` holds them together.
"""

import sys
from collections.abc import Sequence

from conf.model import DrainerConfig
from jobs.cli import add_settings, drainer_config, parser, stop_on_signals
from jobs.replication import Replication
from jobs.report import Reporter
from jobs.session import build_session


def main(argv: Sequence[str]) -> int:
    """Replicate until Ctrl-C, SIGTERM or ``source.ending-commit-ts``."""
    arguments = parser("drainer", "Replicate TiDB's binlogs to a MySQL-protocol server.")
    add_settings(arguments, DrainerConfig)
    config = drainer_config(arguments.parse_args(argv))
    stop = stop_on_signals()
    spark = build_session("tidb-binlog drainer")
    with Replication(spark, config) as replication, Reporter(replication.progress, sys.stdout) as reporter:
        if replication.wait(stop, config.source.ending_commit_ts):
            reporter.say(f"reached source.ending-commit-ts {config.source.ending_commit_ts}")
    return 0
