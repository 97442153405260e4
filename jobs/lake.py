"""``tidb-binlog lake``: the tables of a lake on the command line. ``pyspark_tidb_binlog.lake`` has more.

Promises: what a lake has at a moment is shown without a JVM, and without what only the other commands import (``jobs/past_commands.py``).
"""

import argparse
import datetime
import json
import logging
import unicodedata
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyspark_tidb_binlog.conf.entry import PROGRAM
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.entry.cli import add_switch, config_of, no_command, parser
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.sinks.lake.tables_at import TablesAt

if TYPE_CHECKING:
    from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SnapshotSource

_SHOWN, _MOST_TABLES = 20, 1_000_000
COMMANDS = {
    "tables": "the tables at a moment, and which are set aside and why",
    "versions": "the Delta table and version of each table at a moment, for any engine",
    "snapshots": "what was published: the version of each table that changed",
    "show": "rows of a table: show DB.TABLE",
    "life": "every change of a row, also under other keys and names: life DB.TABLE COLUMN=VALUE ...",
    "transaction": "all changes of a transaction: transaction COMMIT_TS",
    "history": "each state of each row, with the times between which it was there: history DB.TABLE",
    "diff": "what differs between two moments: diff [DB.TABLE] --from T --to T; without a table: numbers",
    "undo": "SQL that takes changes back: undo COMMIT_TS, or undo --from T --to T; it is printed, and executed with --apply",
    "verify": "every mirror compared with the upstream (--config), or with its first load and the ledger (--dir): verify [--tables PATTERN] [--json]",
}
_WORDS = {"show": 1, "transaction": 1, "history": 1, "tables": 0, "versions": 0, "snapshots": 0, "verify": 0}
"""How many a command takes; others take some."""
_SPAN = frozenset({"diff", "undo"})
OF_A_MOMENT, _UNDO, _VERIFY = frozenset({"tables", "versions", "snapshots", "show"}), frozenset({"undo"}), frozenset({"verify"})
_TAKEN_BY = {
    "at": ("--at", OF_A_MOMENT),
    "limit": ("--limit", frozenset(COMMANDS) - {"undo", "verify", "versions"}),
    "begin": ("--from", _SPAN),
    "end": ("--to", _SPAN),
    "tables": ("--tables", _UNDO | _VERIFY),
    "json": ("--json", _VERIFY | {"versions"}),
    "afresh": ("--afresh", _VERIFY),
    "where": ("--where", _UNDO),
    "apply": ("--apply", _UNDO),
    "with_anchors": ("--with-anchors", _UNDO),
}
"""Which commands heed an option. From one that is not heeded a person would take what is shown, or undone, for something else."""


def main(argv: Sequence[str], upstream: "SnapshotSource | None" = None) -> int:
    """Run one command. ``upstream``: of ``verify``; None: ``[spark.upstream]``."""
    given = _options(argv)
    by_sql = given.command == "verify" and given.config is not None
    directory = "" if by_sql else given.dir
    if given.config is not None and not directory and not by_sql:
        directory = config_of(DrainerConfig, given, partial(logging.warning, "%s")).files.dir
    if not directory and not by_sql:
        raise ConfigError("--dir names no lake: give its directory, or --config with the Drainer's settings")
    if given.command in OF_A_MOMENT:
        return _show_moment(given, directory)
    # Not at the top: it takes seconds.
    from pyspark_tidb_binlog.jobs.past_commands import run_past, verify_upstream

    return verify_upstream(given, upstream) if by_sql else run_past(given, directory, given.limit or _SHOWN)


def _show_moment(given: argparse.Namespace, directory: str) -> int:
    newest = TablesAt.newest(directory)
    lake, limit = newest.at(given.at) if given.at else newest, given.limit or _SHOWN
    match given.command:
        case "show":
            rows = _first(lake.rows(given.words[0]), limit + 1)
        case "versions":
            rows, limit = lake.versions(), _MOST_TABLES
        case "tables":
            rows, limit = lake.tables(), given.limit or _MOST_TABLES
        case _:
            rows = lake.snapshots().sort_by([("resolved_ts", "descending")])
    if given.json:
        print(json.dumps({"commit_ts": lake.commit_ts, "time": as_time(lake.commit_ts), "tables": rows.to_pylist()}, ensure_ascii=False))
        return 0
    print(f"at {as_time(lake.commit_ts)} UTC ({lake.commit_ts})")
    for line in _lines(rows, limit):
        print(line)
    return 0


def _first(batches: pa.RecordBatchReader, count: int) -> pa.Table:
    """The first rows, and no more batches than have them."""
    found, there = list[pa.RecordBatch](), 0
    for batch in batches:
        found.append(batch)
        if (there := there + len(batch)) >= count:
            break
    return pa.Table.from_batches(found, batches.schema).slice(0, count)


def _lines(rows: pa.Table, limit: int) -> Iterable[str]:
    """Rows as Spark shows them."""
    cells = [list(rows.column_names), *([_text(value) for value in row.values()] for row in rows.slice(0, limit).to_pylist())]
    widths = [max(3, *map(_width, column)) for column in zip(*cells, strict=True)]
    rule = "+".join(["", *("-" * width for width in widths), ""])
    lines = ["|".join(["", *(cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)), ""]) for row in cells]
    yield from (rule, lines[0], rule, *lines[1:], rule)
    if rows.num_rows > limit:
        yield f"only showing top {limit} rows"


def _text(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case bytes():
            return f"[{value.hex(' ').upper()}]"
        case bool():
            return str(value).lower()
        case datetime.datetime():
            return str(value.replace(tzinfo=None))
        case _:
            return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


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
    add_switch(options, "--json", what="of versions: one JSON object; of verify: one for each table, then one for all")
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
