"""``tidb-binlog verify``: is the target the same as the upstream? Exact, beside a running Drainer. No JVM starts (docs/verify.md).

Promises: without ``--apply`` nothing is written, on either side. Exit code 1: a row differs, or a table that should be compared could not be.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.check.table_repairs import TableRepair, TableRepairs, findings_of
from pyspark_tidb_binlog.jobs.entry.cli import EXIT_FAILED, add_switch, drainer_config, parser
from pyspark_tidb_binlog.jobs.stream.report import plain
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SnapshotSource, upstream_of
from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import only_cluster
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.elsewhere import table_in_target
from pyspark_tidb_binlog.sinks.mysql.session import connect
from pyspark_tidb_binlog.sinks.verify.repair import Difference
from pyspark_tidb_binlog.sinks.verify.repairing import Repairing
from pyspark_tidb_binlog.sinks.verify.standing import Readers
from pyspark_tidb_binlog.sinks.verify.verification import Pace, Verification, VerifiedTable


def main(argv: Sequence[str], upstream: SnapshotSource | None = None) -> int:
    """Compare, and print what differs. ``upstream`` None: ``[spark.upstream]``."""
    options = parser(
        "verify",
        "Compares every table of the target with the upstream, exactly, beside a running Drainer. Without --apply nothing is written.",
    )
    options.add_argument("-config", "--config", type=Path, metavar="FILE", help="the Drainer's settings, with [spark.upstream]")
    options.add_argument("--tables", default="", metavar="PATTERN", help="only these tables, by their names upstream: shop.*,crm.user?")
    options.add_argument("--rate", type=int, default=0, metavar="ROWS", help="rows a second, at most (default: any number)")
    add_switch(options, "--json", what="one JSON object for each table, then one for all")
    add_switch(options, "--repair", what="print the SQL that makes the target's rows right")
    add_switch(options, "--apply", what="execute it at the target, between two batches of the Drainer")
    add_switch(
        options,
        "--others-stopped",
        what="with --apply, after you have stopped who else wrote to the target: also tables with such findings",
    )
    given = options.parsed(argv)
    config = drainer_config(given, lambda words: print(words, file=sys.stderr))
    run, flavour = verification(config, upstream, [p.strip() for p in given.tables.split(",") if p.strip()], given.rate)
    view = _JsonView(flavour) if given.json else _TextView(config, flavour, with_sql=given.repair or given.apply)
    run.shows = view.progress
    repairs = TableRepairs(config, Repairing(run.readers), given.others_stopped) if given.apply else None
    tables, differs = list[VerifiedTable](), False
    for table in run.run():
        result = repairs.repair(table) if repairs is not None and table.tally is not None else None
        view.table(table, result)
        tables.append(table)
        differs |= table.differs and not (result is not None and result.whole)
    view.end(tables)
    return EXIT_FAILED if differs else 0


def verification(
    config: DrainerConfig, upstream: SnapshotSource | None, patterns: Sequence[str] = (), rate: int = 0
) -> tuple[Verification, Flavour]:
    """One run with these settings, and the target's product.

    Raises:
        ConfigError: the settings name no upstream, no server as the target, or a ring.
    """
    if config.apply.db_type not in ("mysql", "tidb"):
        raise ConfigError(f"verify: syncer.db-type = {config.apply.db_type!r} has no tables on a server to compare")
    if config.apply.loopback_control:
        raise ConfigError("verify: in a ring (syncer.loopback-control) both sides are written, so that neither is a copy of the other")
    if upstream is None and not config.upstream.host:
        raise ConfigError(
            "verify reads the upstream by SQL, but spark.upstream.host is empty. Set it, and the user and password of an account with SELECT on the tables"
        )
    if rate < 0:
        raise ConfigError(f"--rate is {rate}: give a number of rows")
    with connect(config.target, config.apply) as session:
        flavour = session.flavour
        cluster_id = config.source.cluster_id or only_cluster(session, config.apply.checkpoint_schema, table_in_target(config))
    source = upstream or upstream_of(config.upstream)
    readers = Readers(config, cluster_id, source, config.apply.parts)
    return Verification(readers, config.apply, cluster_id, patterns, Pace(rate)), flavour


class _TextView:
    def __init__(self, config: DrainerConfig, flavour: Flavour, *, with_sql: bool) -> None:
        self._config, self._flavour, self._with_sql = config, flavour, with_sql
        self._live = sys.stderr.isatty()

    def progress(self, name: str, rows: int) -> None:
        if self._live:
            print(f"\r{plain(name)}: {rows:,} rows\x1b[K", end="", file=sys.stderr, flush=True)

    def table(self, table: VerifiedTable, result: TableRepair | None) -> None:
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        for one in table.left_out:
            print(f"{plain(table.name)}: {'' if one.by_intent else 'NOT AS IT SHOULD BE: '}not compared: {plain(one.words)}")
        if (tally := table.tally) is None:
            return
        at = f"at {table.ts} ({as_time(table.ts)})"
        found = f"{tally.differing:,} rows DIFFER" if tally.differing else "equal"
        print(f"{plain(table.name)}: {tally.rows:,} rows {at}: {found}", flush=True)
        if tally.differing and (count := len(findings_of(self._config, table.target))):
            print(f"  {count} findings of this table are recorded: ctl findings")
        for difference in tally.listed:
            print(f"  -- {_words(difference)}")
            for statement in difference.sql(self._flavour) if self._with_sql else ():
                print(f"  {plain(statement)};")
        if tally.unlisted:
            print(f"  and ranges with {tally.unlisted:,} rows that differ and are not listed")
        if result is not None and tally.differing:
            self._result(result)

    def _result(self, result: TableRepair) -> None:
        if (done := result.done) is None:
            print(f"  NOT repaired: {result.refused}")
            return
        print(
            f"  repaired at {done.ts} ({as_time(done.ts)}): {sum(d.times for d in done.repaired):,} rows; {done.right:,} were right already"
        )
        for left in done.left:
            print(f"  NOT repaired: {_words(left.difference)}: {plain(left.why)}")

    def end(self, tables: Sequence[VerifiedTable]) -> None:
        words = "{tables} tables, {rows:,} rows: {equal:,} equal, {differing:,} differing; {not_compared} tables not compared"
        print(words.format(**_total(tables)))


class _JsonView:
    def __init__(self, flavour: Flavour) -> None:
        self._flavour = flavour

    def progress(self, name: str, rows: int) -> None:
        pass

    def table(self, table: VerifiedTable, result: TableRepair | None) -> None:
        left_out = [{"why": one.words, "by_intent": one.by_intent} for one in table.left_out]
        found: dict[str, Any] = {"table": table.name, "commit_ts": table.ts, "compared": table.tally is not None, "not_compared": left_out}
        if (tally := table.tally) is not None:
            listed = [{"kind": d.kind.name.lower(), "key": d.key, "sql": d.sql(self._flavour)} for d in tally.listed]
            found |= {"rows": tally.rows, "equal": tally.equal, "differing": tally.differing, "differences": listed}
        if result is not None and (done := result.done) is not None:
            left = [{"key": one.difference.key, "why": one.why} for one in done.left]
            found |= {"repaired": sum(d.times for d in done.repaired), "right_already": done.right, "not_repaired": left}
        elif result is not None:
            found |= {"repaired": 0, "refused": result.refused}
        print(json.dumps(found), flush=True)

    def end(self, tables: Sequence[VerifiedTable]) -> None:
        print(json.dumps(_total(tables)))


def _total(tables: Sequence[VerifiedTable]) -> dict[str, int]:
    tallies = [table.tally for table in tables if table.tally is not None]
    sums = {name: sum(getattr(tally, name) for tally in tallies) for name in ("rows", "equal", "differing")}
    return {"tables": len(tallies), **sums, "not_compared": len(tables) - len(tallies)}


def _words(difference: Difference) -> str:
    key = ", ".join(f"{name} = {plain(value)}" for name, value in difference.key.items())
    changed = f" ({', '.join(map(plain, difference.changed))})" if difference.changed else ""
    return f"{difference.kind}: {key}{changed}" + (f", {difference.times} times" if difference.times > 1 else "")
