"""``tidb-binlog lake``: the tables of a lake, what was published of them, and their rows at any moment, printed. [spark]

Promises: nothing is written. Exit codes as in ``jobs/entry/cli.py``.
"""

from collections.abc import Sequence
from pathlib import Path

from pyspark_tidb_binlog.conf.entry import PROGRAM
from pyspark_tidb_binlog.conf.load import load_drainer
from pyspark_tidb_binlog.jobs.entry.cli import no_command, parser
from pyspark_tidb_binlog.jobs.spark.spark_session import build_session
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.sinks.past.lake_past import Lake

_SHOWN, _MOST_TABLES = 20, 1_000_000
COMMANDS = {
    "tables": "the tables at a moment, and which are set aside and why",
    "snapshots": "what was published: the version of each table that changed",
    "show": "rows of a table: show DB.TABLE",
}


def main(argv: Sequence[str]) -> int:
    """Run one command."""
    options = parser("lake", "The tables of a lake (db-type = lake), at its newest moment or at an earlier one.", COMMANDS)
    options.add_argument("command", metavar="COMMAND", help="tables, snapshots or show")
    options.add_argument("table", nargs="?", default="", metavar="DB.TABLE", help="the table of show")
    options.add_argument("--dir", default="", metavar="DIR", help="path or URI of the lake (syncer.to.dir)")
    options.add_argument("--config", type=Path, metavar="FILE", help="the Drainer's settings, which name the lake")
    options.add_argument(
        "--at", default="", metavar="T", help="the moment: a time (2026-11-20T12:00:00, UTC) or a TSO (default: the newest)"
    )
    options.add_argument("--limit", type=int, default=0, metavar="N", help=f"how many rows (default: {_SHOWN}; all tables)")
    given = options.parsed(argv)
    if given.command not in COMMANDS:
        raise no_command(given.command, COMMANDS, f"{PROGRAM} lake")
    if bool(given.table) != (given.command == "show"):
        raise ConfigError("show needs a table, as show shop.orders; the other commands take none")
    if given.limit < 0:
        raise ConfigError(f"--limit is {given.limit}: give a number from 1 on")
    directory = given.dir or (load_drainer(given.config).files.dir if given.config is not None else "")
    if not directory:
        raise ConfigError("--dir names no lake: give its directory, or --config with the Drainer's settings")
    lake = Lake(build_session("lake"), directory)
    then = lake.at(given.at) if given.at else lake
    match given.command:
        case "tables":
            rows = then.tables()
        case "snapshots":
            rows = lake.snapshots()
            rows = rows.where(f"resolved_ts <= {then.commit_ts}").orderBy("resolved_ts", ascending=False)
        case _:
            rows = then.table(given.table)
    print(f"at {as_time(then.commit_ts)} UTC ({then.commit_ts})")
    rows.show(given.limit or (_SHOWN if given.command != "tables" else _MOST_TABLES), truncate=False)
    return 0
