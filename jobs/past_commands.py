"""``tidb-binlog lake`` of the past, and ``lake verify``: what needs Spark, and what compares a lake with its upstream.

Promises: ``verify`` of the upstream needs no JVM.
"""

import argparse
import sys
from collections.abc import Mapping

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.check.verify_run import JsonView, TextView, VerifiedView, VerifyRun, patterns_of, record_of
from pyspark_tidb_binlog.jobs.entry.cli import EXIT_FAILED, config_of, target_of
from pyspark_tidb_binlog.jobs.entry.signals import stop_on_signals
from pyspark_tidb_binlog.jobs.spark.spark_session import build_session
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SnapshotSource, upstream_of
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.structure import TableName
from pyspark_tidb_binlog.sinks.past.lake_past import Lake
from pyspark_tidb_binlog.sinks.past.ledger_comparison import LedgerComparison
from pyspark_tidb_binlog.sinks.verify.lake_comparison import LakeComparison, load_again
from pyspark_tidb_binlog.sinks.verify.verification import VerifiedTable

_MOST_LEFT = 50


def run_past(given: argparse.Namespace, directory: str, shown: int) -> int:
    """Run one command of the past, as ``jobs/lake.py`` has parsed it; its exit code. ``shown``: so many rows."""
    lake, words = Lake(build_session("lake"), directory), given.words
    match given.command:
        case "undo":
            return _undo(lake, given)
        case "verify":
            return VerifyRun(_view(given, {}), None, _load_again).to_its_end(
                LedgerComparison(lake, patterns_of(given.tables or "")).run(), stop_on_signals()
            )
        case "life":
            rows = lake.life(words[0], **{column: value for column, _, value in (word.partition("=") for word in words[1:])})
        case "transaction":
            rows = lake.transaction(_tso(words[0])).drop("job", "job_id", "early", "row_key", "resolved_ts")
        case "history":
            rows = lake.history(words[0])
        case _:
            rows = lake.diff(words[0], given.begin, given.end) if words else lake.diff(given.begin, given.end)
    print(f"at {as_time(lake.commit_ts)} UTC ({lake.commit_ts}){_begin(lake)}")
    rows.show(shown, truncate=False)
    return 0


def verify_upstream(given: argparse.Namespace, upstream: SnapshotSource | None) -> int:
    """Compare every mirror with ``upstream``; None: ``[spark.upstream]``."""
    config = config_of(DrainerConfig, given, lambda words: print(words, file=sys.stderr))
    if given.dir:
        raise ConfigError("lake verify: --config compares the lake with the upstream, --dir compares it with its ledger: give one of them")
    if config.apply.db_type != "lake":
        raise ConfigError(f"lake verify: syncer.db-type is {config.apply.db_type!r}, not lake")
    run = LakeComparison(
        config.files.dir.rstrip("/"), upstream or upstream_of(config.upstream), config.apply, patterns_of(given.tables or "")
    )
    record, stop = record_of(config, given.tables or "", Flavour.TIDB), stop_on_signals()
    taken = VerifyRun(_view(given, run.names()), record, _load_again)
    return taken.to_its_end(run.run(taken.begin(afresh=given.afresh)), stop)


def _view(given: argparse.Namespace, about: Mapping[TableName, int]) -> VerifiedView:
    rows = {".".join(name): count for name, count in about.items()}
    return JsonView(Flavour.TIDB) if given.json else TextView(Flavour.TIDB, rows, sys.stderr)


def _load_again(found: VerifiedTable) -> list[str]:
    return [load_again(found.name)] if found.tally is not None and found.tally.differing else []


def _undo(lake: Lake, given: argparse.Namespace) -> int:
    span = _tso(given.words[0]) if given.words else (given.begin, given.end)
    undo = lake.undo(span, [name for name in (given.tables or "").split(",") if name], given.where or "", with_anchors=given.with_anchors)
    if not given.apply:
        for line in undo.plan.sql():
            print(line)
        return 0
    print(undo)
    done = undo.apply(target_of(given.apply))
    print(f"{done.rows} rows are as they were before, {len(done.left)} were left as they are")
    for row in done.left[:_MOST_LEFT]:
        print(f"  {row}")
    if len(done.left) > _MOST_LEFT:
        print(f"  … and {len(done.left) - _MOST_LEFT} more")
    return EXIT_FAILED if done.left else 0


def _begin(lake: Lake) -> str:
    """Words, where the ledger has been shortened."""
    return f"; row changes are kept since {as_time(lake.begin_ts)} UTC ({lake.begin_ts})" if lake.begin_ts else ""


def _tso(word: str) -> int:
    if not word.isdigit():
        raise ConfigError(f"{word!r} is no commit_ts: give the number, as lake life and lake diff show it")
    return int(word)
