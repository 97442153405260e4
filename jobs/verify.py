"""``tidb-binlog verify``: is the target the same as the upstream? Exact, beside a running Drainer. No JVM starts (docs/verify.md).

Promises: without ``--apply`` nothing is written, on either side. Exit code 1: a row or a definition differs, a table that should be compared could not be, or not all
tables were seen. What was found is in the Delta table ``verification``; a run that was ended is continued there.
"""

import contextlib
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from pyspark_tidb_binlog.binlog_source.cluster.history_place import history_at
from pyspark_tidb_binlog.conf.entry import PROGRAM
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.check.node_report import rest
from pyspark_tidb_binlog.jobs.check.recorded_findings import open_findings
from pyspark_tidb_binlog.jobs.check.verify_run import JsonView, TableRepairer, TextView, VerifyRun, patterns_of, record_of
from pyspark_tidb_binlog.jobs.entry.cli import add_switch, config_of, parser
from pyspark_tidb_binlog.jobs.entry.signals import stop_on_signals
from pyspark_tidb_binlog.jobs.stream.upstream_cluster import ports_at, unverified
from pyspark_tidb_binlog.schemas.errors import ConfigError, PumpUnavailable
from pyspark_tidb_binlog.schemas.tls import TlsSettings
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SnapshotSource, upstream_of
from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import only_cluster
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import RecordedDdl, remarkable
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.elsewhere import table_in_target
from pyspark_tidb_binlog.sinks.mysql.session import connect
from pyspark_tidb_binlog.sinks.mysql.upstream_collations import with_collations
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from pyspark_tidb_binlog.sinks.verify.explanation import explanations
from pyspark_tidb_binlog.sinks.verify.repairing import Repairing
from pyspark_tidb_binlog.sinks.verify.standing import Readers
from pyspark_tidb_binlog.sinks.verify.table_comparison import MOST_LISTED
from pyspark_tidb_binlog.sinks.verify.verification import Pace, Verification, VerifiedTable

_FOLLOW_RATE, _FOLLOW_SHOWN = 5_000, 20


def main(argv: Sequence[str], upstream: SnapshotSource | None = None) -> int:
    """Compare, and print what differs. ``upstream`` None: ``[spark.upstream]``."""
    options = parser("verify", "Compares every table of the target with the upstream, exactly, beside a running Drainer.")
    options.add_argument("-config", "--config", type=Path, metavar="FILE", help="the Drainer's settings, with [spark.upstream]")
    options.add_argument(
        "--tables", default="", metavar="PATTERN", help="only these tables, by their names on either side: shop.*,crm.user?"
    )
    options.add_argument("--rate", type=int, default=0, metavar="ROWS", help="rows a second, at most (default: any number)")
    add_switch(options, "--json", what="one JSON object for each table, then one for all")
    add_switch(options, "--afresh", what="do not continue a run that was ended")
    add_switch(options, "--follow", what="go on until it is stopped: each minute what has changed, and all tables once an hour")
    add_switch(options, "--repair", what="print the SQL that makes the target's rows right")
    add_switch(options, "--apply", what="execute it at the target, between two batches of the Drainer")
    add_switch(
        options,
        "--others-stopped",
        what="with --apply, after you have stopped who else wrote to the target: also tables with such findings",
    )
    given = options.parsed(argv)
    if given.others_stopped and not given.apply:
        options.error("--others-stopped says something about --apply, which is not given")
    if given.follow and given.apply:
        options.error("--follow and --apply: a repair is one run; give one of them")
    config = config_of(DrainerConfig, given, lambda words: print(words, file=sys.stderr))
    stop = stop_on_signals()
    rate = given.rate or (_FOLLOW_RATE if given.follow else 0)
    patterns = patterns_of(given.tables)
    run, flavour = verification(config, upstream, patterns, rate)
    # A verification that somebody asks for does not take over what an endless one has seen up to an hour ago.
    record = record_of(config, given.tables, flavour, ", again and again" if given.follow else "")
    with contextlib.closing(run):
        names = run.names()
        about = {".".join(name): rows for name, rows in names.items()}
        if unknown := [pattern for pattern in patterns if not any(run.is_named(name, [pattern]) for name in names)]:
            raise ConfigError(
                f"--tables {','.join(unknown)}: no table that is replicated has such a name: write DB.TABLE, also with * and ?"
            )
        view = (
            JsonView(flavour)
            if given.json
            else TextView(
                flavour, about, sys.stderr, with_sql=given.repair or given.apply, most=_FOLLOW_SHOWN if given.follow else MOST_LISTED
            )
        )
        repairs = TableRepairer(config, Repairing(run.readers), given.others_stopped) if given.apply else None
        taken = VerifyRun(view, record, _explained(config, run.cluster_id), repairs)
        if given.follow:
            from pyspark_tidb_binlog.jobs.check.verify_follow import Follow  # it imports PySpark, which others do without

            Follow(config, run, taken, record).until(stop)
            return 0
        begun = taken.begin(afresh=given.afresh)
        return taken.to_its_end(run.run(begun), stop)


def verification(
    config: DrainerConfig, upstream: SnapshotSource | None, patterns: Sequence[str] = (), rate: int = 0
) -> tuple[Verification, Flavour]:
    """One run with these settings, and the target's product.

    Raises:
        ConfigError: the settings name no upstream, no server as the target, or a ring.
    """
    if config.apply.db_type not in ("mysql", "tidb"):
        of_lake = f": {PROGRAM} lake verify compares a lake" if config.apply.db_type == "lake" else ""
        raise ConfigError(f"verify: syncer.db-type = {config.apply.db_type!r} has no tables on a server to compare{of_lake}")
    if config.apply.loopback_control:
        raise ConfigError("verify: in a ring (syncer.loopback-control) both sides are written, so that neither is a copy of the other")
    if rate < 0:
        raise ConfigError(f"--rate is {rate}: give a number of rows")
    config = config if upstream else with_collations(config)
    source = upstream or upstream_of(config.upstream)
    with connect(config.target, config.apply) as session:
        flavour = session.flavour
        cluster_id = config.source.cluster_id or only_cluster(session, config.apply.checkpoint_schema, table_in_target(config))
    if upstream is None:
        _require_cluster(config, source, cluster_id)
    readers = Readers(config, cluster_id, source, config.apply.parts, partial(rest, config))
    return Verification(readers, config.apply, cluster_id, patterns, Pace(rate)), flavour


def _require_cluster(config: DrainerConfig, source: SnapshotSource, cluster_id: int) -> None:
    """Refuse a TiDB of another cluster than the one whose binlogs the Drainer reads; say so where this cannot be told.

    Raises:
        BootstrapRefused: it is one.
    """
    tls = TlsSettings.of(config.source.security)
    try:
        where = history_at(config.source, tls)
        why = unverified(source, cluster_id, lambda: ports_at(where, tls).servers())
    except (ConfigError, PumpUnavailable) as error:
        why = str(error)
    if why:
        print(
            f"not known whether spark.upstream ({source.where}) is of cluster {cluster_id}, whose binlogs the target has: {why}",
            file=sys.stderr,
        )


def _explained(config: DrainerConfig, cluster_id: int) -> Callable[[VerifiedTable], list[str]]:
    """What may explain that a table differs, as far as the target and this machine have it recorded: read once for all tables at an S."""
    routes = Selection.of(config.apply).routes

    @lru_cache(maxsize=1)
    def recorded(ts: int) -> tuple[list[dict[str, Any]], list[RecordedDdl]]:
        findings = list[dict[str, Any]]()
        with contextlib.suppress(ConfigError):  # the Delta table is elsewhere, or not there yet
            findings += open_findings(config)
        with connect(config.target, config.apply) as session:
            return findings, remarkable(session, config.apply.checkpoint_schema, cluster_id)

    def explained(found: VerifiedTable) -> list[str]:
        if not found.differs:
            return []
        schema, _, table = found.name.partition(".")
        to = routes.target(schema, table)
        return list(explanations((schema, table), (to.schema, to.name), *recorded(found.ts), config.apply.ignore_txn_commit_ts))

    return explained
