"""``tidb-binlog verify``: is the target the same as the upstream? Exact, beside a running Drainer. No JVM starts (docs/verify.md).

Promises: nothing is written, on either side. Exit code 1: a row or a definition differs, a table that should be compared could not be, or not all tables were seen. Statements that would repair the target are
printed and not executed. What was found is in the Delta table ``verification``; a run that was ended is continued there.
"""

import contextlib
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.conf.units import days_or_duration
from pyspark_tidb_binlog.jobs.check.recorded_findings import recorded_findings
from pyspark_tidb_binlog.jobs.check.verified_view import JsonView, TextView, VerifiedView, total_of
from pyspark_tidb_binlog.jobs.entry.cli import EXIT_FAILED, add_switch, drainer_config, parser
from pyspark_tidb_binlog.jobs.entry.signals import stop_on_signals
from pyspark_tidb_binlog.jobs.stream.targets import words_for
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SnapshotSource, upstream_of
from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import only_cluster
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import remarkable
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.elsewhere import table_in_target
from pyspark_tidb_binlog.sinks.mysql.session import connect
from pyspark_tidb_binlog.sinks.mysql.upstream_collations import with_collations
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from pyspark_tidb_binlog.sinks.verify.explanation import explanations
from pyspark_tidb_binlog.sinks.verify.standing import Readers
from pyspark_tidb_binlog.sinks.verify.table_comparison import Tally
from pyspark_tidb_binlog.sinks.verify.verification import Pace, Round, Verification, VerifiedTable
from pyspark_tidb_binlog.sinks.verify.verification_table import ALL, VerificationTable, verification_dir

_FOLLOW_RATE = 5_000
_STOPPED = "ended before all tables were seen: the same command goes on here"


def main(argv: Sequence[str], upstream: SnapshotSource | None = None) -> int:
    """Compare, and print what differs. ``upstream`` None: ``[spark.upstream]``."""
    options = parser(
        "verify", "Compares every table of the target with the upstream, exactly, beside a running Drainer. Nothing is written."
    )
    options.add_argument("-config", "--config", type=Path, metavar="FILE", help="the Drainer's settings, with [spark.upstream]")
    options.add_argument(
        "--tables", default="", metavar="PATTERN", help="only these tables, by their names on either side: shop.*,crm.user?"
    )
    options.add_argument("--rate", type=int, default=0, metavar="ROWS", help="rows a second, at most (default: any number)")
    add_switch(options, "--json", what="one JSON object for each table, then one for all")
    add_switch(options, "--afresh", what="do not continue a run that was ended")
    add_switch(options, "--follow", what="go on until it is stopped: each minute what has changed, and all tables once an hour")
    given = options.parsed(argv)
    config = drainer_config(given, lambda words: print(words, file=sys.stderr))
    stop = stop_on_signals()
    rate = given.rate or (_FOLLOW_RATE if given.follow else 0)
    run, flavour = verification(config, upstream, [p.strip() for p in given.tables.split(",") if p.strip()], rate)
    retention, compares = days_or_duration(config.delta_retention), f"{given.tables or ALL} of {words_for(config).where}"
    record = VerificationTable(verification_dir(config.delta_dir), retention, flavour, compares)
    with contextlib.closing(run):
        about = {".".join(name): rows for name, rows in run.names().items()}
        view = JsonView(flavour) if given.json else TextView(flavour, about, sys.stderr)
        if given.follow:
            from pyspark_tidb_binlog.jobs.check.verify_follow import Follow  # it imports PySpark, which others do without

            Follow(config, run, view, record, partial(_explained, config, run.cluster_id)).until(stop)
            return 0
        begun = record.begin(afresh=given.afresh)
        if begun.run:
            view.say(f"goes on where the run of {begun.run} ended; {len(begun.tables)} tables were equal (--afresh begins anew)")
        run.equal, run.done = begun.parts, begun.tables.keys()
        tables = [VerifiedTable(name, ts, (), Tally(rows=rows)) for name, (ts, rows) in begun.tables.items()]
        whole = _taken(config, run, view, record, tables, stop)
    if record.trouble:
        print(f"not recorded in {record.uri}: {record.trouble}", file=sys.stderr)
    if not whole:
        view.say(_STOPPED)
        return EXIT_FAILED
    view.end(total_of(tables))
    return EXIT_FAILED if any(table.differs for table in tables) else 0


def _taken(
    config: DrainerConfig,
    run: Verification,
    view: VerifiedView,
    record: VerificationTable,
    tables: list[VerifiedTable],
    stop: threading.Event,
) -> bool:
    """Show and record what a run finds; False: it was asked to stop before its end."""
    try:
        for found in run.run():
            if isinstance(found, Round):
                view.round(found)
                record.note_part(found)
            else:
                words = _explained(config, run.cluster_id, found)
                view.table(found, words)
                record.note_table(found, words)
                tables.append(found)
            if stop.is_set():
                return False
        record.end()
        return True
    finally:
        record.flush()


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
    config = config if upstream else with_collations(config)
    with connect(config.target, config.apply) as session:
        flavour = session.flavour
        cluster_id = config.source.cluster_id or only_cluster(session, config.apply.checkpoint_schema, table_in_target(config))
    source = upstream or upstream_of(config.upstream)
    readers = Readers(config, cluster_id, source, config.apply.parts)
    return Verification(readers, config.apply, cluster_id, patterns, Pace(rate)), flavour


def _explained(config: DrainerConfig, cluster_id: int, found: VerifiedTable) -> list[str]:
    """What may explain that a table differs, as far as the target and this machine have it recorded."""
    if not found.differs:
        return []
    schema, _, table = found.name.partition(".")
    to, findings = Selection.of(config.apply).routes.target(schema, table), list[dict[str, Any]]()
    with contextlib.suppress(ConfigError):  # the Delta table is elsewhere, or not there yet
        findings += recorded_findings(config)
    with connect(config.target, config.apply) as session:
        ddls = remarkable(session, config.apply.checkpoint_schema, cluster_id)
    return list(explanations((schema, table), (to.schema, to.name), findings, ddls, config.apply.ignore_txn_commit_ts))
