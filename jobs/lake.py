"""``tidb-binlog lake``: the tables of a lake at any moment, what was published of them, and what the ledger knows of their past, printed. [spark]

Promises: nothing of the lake is written, and nothing else but by ``undo --apply``. Exit codes as in ``jobs/entry/cli.py``: ``undo --apply`` that left rows, and
``verify`` that found a difference, end with 1. ``verify --config`` needs no JVM.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark_tidb_binlog.conf.entry import PROGRAM
from pyspark_tidb_binlog.conf.load import load_drainer
from pyspark_tidb_binlog.jobs.check.verified_view import JsonView, TextView, VerifiedView
from pyspark_tidb_binlog.jobs.check.verify_run import VerifyRun, patterns_of, record_of
from pyspark_tidb_binlog.jobs.entry.cli import EXIT_FAILED, add_switch, drainer_config, no_command, parser, target_of
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

_SHOWN, _MOST_TABLES, _MOST_LEFT = 20, 1_000_000, 50
COMMANDS = {
    "tables": "the tables at a moment, and which are set aside and why",
    "snapshots": "what was published: the version of each table that changed",
    "show": "rows of a table: show DB.TABLE",
    "life": "every change of a row, also under other keys and names: life DB.TABLE COLUMN=VALUE ...",
    "transaction": "all changes of a transaction: transaction COMMIT_TS",
    "history": "each state of each row, with the times between which it was there: history DB.TABLE",
    "diff": "what differs between two moments: diff [DB.TABLE] --from T --to T; without a table: numbers",
    "undo": "SQL that takes changes back: undo COMMIT_TS, or undo --from T --to T; it is printed, and executed with --apply",
    "verify": "every mirror compared with the upstream (--config), or with its first load and the ledger (--dir): verify [--tables PATTERN] [--json]",
}
_WORDS = {"show": 1, "transaction": 1, "history": 1, "tables": 0, "snapshots": 0, "verify": 0}
"""How many a command takes; others take some."""
_SPAN = frozenset({"diff", "undo"})
_MOMENT, _UNDO, _VERIFY = frozenset({"tables", "snapshots", "show"}), frozenset({"undo"}), frozenset({"verify"})
_TAKEN_BY = {
    "at": ("--at", _MOMENT),
    "limit": ("--limit", frozenset(COMMANDS) - {"undo", "verify"}),
    "begin": ("--from", _SPAN),
    "end": ("--to", _SPAN),
    "tables": ("--tables", _UNDO | _VERIFY),
    "json": ("--json", _VERIFY),
    "afresh": ("--afresh", _VERIFY),
    "where": ("--where", _UNDO),
    "apply": ("--apply", _UNDO),
    "with_anchors": ("--with-anchors", _UNDO),
}
"""Which commands heed an option. From one that is not heeded a person would take what is shown, or undone, for something else."""


def main(argv: Sequence[str], upstream: SnapshotSource | None = None) -> int:
    """Run one command. ``upstream``: of ``verify``; None: ``[spark.upstream]``."""
    given = _options(argv)
    if given.command == "verify" and given.config is not None:
        return _verify_upstream(given, upstream)
    directory = given.dir or (load_drainer(given.config).files.dir if given.config is not None else "")
    if not directory:
        raise ConfigError("--dir names no lake: give its directory, or --config with the Drainer's settings")
    lake = Lake(build_session("lake"), directory)
    words, then = given.words, lake.at(given.at) if given.at else lake
    match given.command:
        case "undo":
            return _undo(lake, given)
        case "verify":
            return VerifyRun(_view(given, {}), None, _load_again).to_its_end(
                LedgerComparison(lake, patterns_of(given.tables or "")).run(), stop_on_signals()
            )
        case "tables":
            rows = then.tables()
        case "snapshots":
            rows = lake.snapshots()
            rows = rows.where(f"resolved_ts <= {then.commit_ts}").orderBy("resolved_ts", ascending=False)
        case "show":
            rows = then.table(words[0])
        case "life":
            rows = lake.life(words[0], **{column: value for column, _, value in (word.partition("=") for word in words[1:])})
        case "transaction":
            rows = lake.transaction(_tso(words[0])).drop("job", "job_id", "early", "row_key", "resolved_ts")
        case "history":
            rows = lake.history(words[0])
        case _:
            rows = lake.diff(words[0], given.begin, given.end) if words else lake.diff(given.begin, given.end)
    print(f"at {as_time(then.commit_ts)} UTC ({then.commit_ts})" + (_begin(lake) if given.command not in _MOMENT else ""))
    rows.show(given.limit or (_SHOWN if given.command != "tables" else _MOST_TABLES), truncate=False)
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    options = parser("lake", "The tables of a lake (db-type = lake), at its newest moment or at an earlier one, and their past.", COMMANDS)
    options.add_argument("command", metavar="COMMAND", help=", ".join(COMMANDS))
    options.add_argument("words", nargs="*", metavar="WORD", help="what the command takes: a table, COLUMN=VALUE, a commit_ts")
    options.add_argument("--dir", default="", metavar="DIR", help="path or URI of the lake (syncer.to.dir)")
    options.add_argument("--config", type=Path, metavar="FILE", help="the Drainer's settings, which name the lake")
    options.add_argument("--at", metavar="T", help="the moment: a time (2026-11-20T12:00:00, UTC) or a TSO (default: the newest)")
    options.add_argument("--limit", type=int, metavar="N", help=f"how many rows (default: {_SHOWN}; all tables)")
    options.add_argument("--from", dest="begin", metavar="T", help="of diff and undo: the moment before the changes")
    options.add_argument("--to", dest="end", metavar="T", help="of diff and undo: the moment after the changes")
    options.add_argument(
        "--tables", metavar="DB.TABLE,...", help="of undo, verify: only these tables; of verify also patterns: shop.*,crm.user?"
    )
    options.add_argument("--where", metavar="SQL", help="of undo: only rows for which this condition over their columns holds")
    options.add_argument("--apply", metavar="URL", help="of undo: execute it at mysql://user:password@host:port")
    add_switch(
        options, "--with-anchors", what="of undo: rows that TRUNCATE, DROP or EXCHANGE PARTITION took are read from the tables before it"
    )
    add_switch(options, "--json", what="of verify: one JSON object for each table, then one for all")
    add_switch(options, "--afresh", what="of verify --config: do not continue a run that was ended")
    given = options.parsed(argv)
    command, words = given.command, given.words
    if command not in COMMANDS:
        raise no_command(command, COMMANDS, f"{PROGRAM} lake")
    if len(words) != _WORDS.get(command, len(words)) or (command == "life" and len(words) < 2) or (command in _SPAN and len(words) > 1):
        raise ConfigError(
            f"write it so: lake {COMMANDS[command].rpartition(': ')[2]}" if _WORDS.get(command) != 0 else f"{command} takes no {words[0]}"
        )
    if command in _SPAN and not (given.begin and given.end) and (command == "diff" or not words):
        raise ConfigError(f"{command} needs --from and --to" + (", or a commit_ts" if command == "undo" else ""))
    _check_options(given)
    if given.limit is not None and given.limit < 1:
        raise ConfigError(f"--limit is {given.limit}: give a number from 1 on")
    return given


def _check_options(given: argparse.Namespace) -> None:
    """None that the command does not heed, and none that a variable without a value has left empty."""
    for name, (option, commands) in _TAKEN_BY.items():
        value = getattr(given, name)
        if value is not None and value is not False and given.command not in commands:
            raise ConfigError(f"{given.command} takes no {option}")
        if isinstance(value, str) and not value.strip(" ,"):
            raise ConfigError(f"{option} is empty: leave it out, or give it a value")
    if given.command == "undo" and given.words and (given.begin or given.end):
        raise ConfigError("undo takes a commit_ts, or --from and --to, not both")


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


def _verify_upstream(given: argparse.Namespace, upstream: SnapshotSource | None) -> int:
    config = drainer_config(given, lambda words: print(words, file=sys.stderr))
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


def _begin(lake: Lake) -> str:
    """Words, where the ledger has been shortened."""
    return f"; row changes are kept since {as_time(lake.begin_ts)} UTC ({lake.begin_ts})" if lake.begin_ts else ""


def _tso(word: str) -> int:
    if not word.isdigit():
        raise ConfigError(f"{word!r} is no commit_ts: give the number, as lake life and lake diff show it")
    return int(word)
