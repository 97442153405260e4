"""``ctl promote``: what to know, and what to set, before applications write to the target. No JVM starts, and nobody upstream is asked.

Promises: without ``apply`` nothing is written. With it the printed statements are executed under the lease, and the lease is given to nobody again
(``sinks.mysql.lease.promote``): a later start of a Drainer is refused. A running Drainer is not touched: it must be stopped first. Exit code 1: a
Drainer runs, or the target is half written.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from pyspark_tidb_binlog.conf.entry import comparing
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.check.recorded_findings import finding_lines, open_findings
from pyspark_tidb_binlog.jobs.entry.cli import EXIT_FAILED
from pyspark_tidb_binlog.jobs.entry.local_paths import history_cache
from pyspark_tidb_binlog.jobs.stream.report import one_ddl, plain
from pyspark_tidb_binlog.jobs.stream.targets import require_server, words_for
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError, LeaseHeld
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.mysql import lease
from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import TargetCheckpoint, only_cluster
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import load_frozen, remarkable
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, table_name
from pyspark_tidb_binlog.sinks.mysql.elsewhere import table_in_target
from pyspark_tidb_binlog.sinks.mysql.lease_guard import LeasedTarget, is_held
from pyspark_tidb_binlog.sinks.mysql.retry_policy import FEW
from pyspark_tidb_binlog.sinks.mysql.sequences import place_of
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from pyspark_tidb_binlog.sinks.mysql.state_table import StateTable
from pyspark_tidb_binlog.sinks.mysql.structure import counters_of, sequences_of
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from pyspark_tidb_binlog.sinks.routing.table_filter import own_schemas

_SHOWN = 8
"""Lines of one kind, at most; statements that are executed are all printed."""
_QUERY_CHARS = 100


@dataclass(frozen=True, slots=True)
class Promotion:
    """The target before it is promoted."""

    cluster_id: int
    writer: str
    """Who writes to it now; empty: nobody."""
    whole: bool
    """No transaction is there in part."""
    words: tuple[tuple[str, tuple[str, ...]], ...]
    """Topics, each with its lines."""
    statements: tuple[str, ...]
    """Those to execute."""


def main(config: DrainerConfig, *, apply: bool) -> int:
    """Print what there is, and with ``apply`` promote the target."""
    require_server(config)
    with connect(config.target, config.apply) as session:
        with contextlib.suppress(ApplyError):  # TiDB has no such transactions
            session.execute("START TRANSACTION READ ONLY")
        found = promotion_of(session, config)
        session.rollback()
    print(f"target {words_for(config).where}, cluster {found.cluster_id}")
    for topic, lines in found.words:
        most = len(lines) if lines == found.statements else _SHOWN
        for line in lines[:most]:
            print(f"{topic:<15} {plain(line)}")
        if len(lines) > most:
            print(f"{topic:<15} and {len(lines) - most} more")
    if not apply:
        does = "the statements above are executed, and the stream ends for good" if found.statements else "the stream ends for good"
        print(f"Nothing was changed. With -apply {does}.{' Stop the Drainer first.' if found.writer else ''}")
        return EXIT_FAILED if found.writer or not found.whole else 0
    if found.writer:
        raise LeaseHeld(f"nothing was changed, because {found.writer} writes here. Stop that Drainer first, and promote then")
    if not found.whole:
        raise ConfigError(
            "nothing was changed, because a span is half written. Let the Drainer finish it, or its relay log alone. If neither can, make the checkpoint's "
            "consistent true by hand, and compare the tables that were written last, if the upstream is there: "
            f"{comparing()}"
        )
    _promote(config, found)
    print("Promoted: no Drainer starts with this target any more. Applications may write to it.")
    return 0


def promotion_of(session: Session, config: DrainerConfig) -> Promotion:
    """What the target, and the Drainer's own files on this machine, say.

    Raises:
        ConfigError: no stream has written to it, or it is promoted already.
    """
    apply, table = config.apply, table_in_target(config)
    schema = apply.checkpoint_schema
    cluster_id = config.source.cluster_id or only_cluster(session, schema, table)
    row = lease.look(session, cluster_id, schema)
    if row is None:
        raise ConfigError(f"{schema}.spark_lease has no row of cluster {cluster_id}: no Drainer of this project has written to this target")
    if row.life == lease.PROMOTED:
        raise ConfigError(f"it is promoted already, by {row.words}. {lease.promoted_todo(cluster_id, schema)}")
    writer = row.words if is_held(session, cluster_id, schema) else ""
    recorded = TargetCheckpoint(cluster_id, schema, table).load(session)
    there = StateTable(schema, cluster_id).read(session).progress(recorded)
    half = "NOT consistent: a later span is half written. Start the Drainer until it is done, or its relay log alone, if you can"
    at = f"everything up to {as_time(there.commit_ts)} (TSO {there.commit_ts}) is there"
    counters = tuple(_behind(session, apply.checkpoint_schema))
    found = {
        "position": (f"{at}; {'consistent' if there.consistent else half}",),
        "stream": (f"{writer} writes here: stop it first" if writer else f"nobody writes here; last {row.words}",),
        "DDLs": tuple(_ddls(session, config, cluster_id)),
        "findings": tuple(_findings(config)),
        "AUTO_INCREMENT": counters or ("every counter is beyond its column",),
        "AUTO_RANDOM": tuple(_without_numbers(session, config, cluster_id)),
        "sequences": tuple(_sequences(session, schema)),
    }
    return Promotion(cluster_id, writer, there.consistent, tuple(found.items()), counters)


def _ddls(session: Session, config: DrainerConfig, cluster_id: int) -> Iterator[str]:
    schema = config.apply.checkpoint_schema
    known = remarkable(session, schema, cluster_id)
    lost = sum(bool(ddl.losses) for ddl in known if ddl.state == "done")
    yield (
        f"{len(known)} were not executed as TiDB wrote them, {lost} of them lost something: ctl ddl"
        if known
        else "each was executed as TiDB wrote it"
    )
    for ddl in known:
        if ddl.state != "done":
            yield f"{ddl.state}: job {ddl.job_id}: {one_ddl(ddl.query, _QUERY_CHARS)}"
    if known:
        for table in load_frozen(session, config.apply, cluster_id).values():
            what = "is frozen" if table.columns is not None else "is missing"
            yield f"{table.schema}.{table.name} {what} since job {table.since}, so its rows may differ from the upstream's"


def _findings(config: DrainerConfig) -> Iterator[str]:
    try:
        rows = open_findings(config)
    except ConfigError as error:
        yield f"not known here: {error}"
        return
    for of_a_failover in (False, True):  # rows that applications cannot change here have a kind of their own
        some = [row for row in rows if (row["kind"] == "failover") is of_a_failover]
        if some or not of_a_failover:
            yield from finding_lines(some, 3, config.apply.log_row_data)


def _behind(session: Session, schema: str) -> Iterator[str]:
    """For each table whose next number is taken: what moves its counter on. Some servers count inserts only, no UPDATE of the key."""
    for database, table, column, counter in counters_of(session, own_schemas(schema)):
        ((most,),) = session.query(f"SELECT MAX({quote_name(column)}) FROM {table_name(database, table)}")
        if most is not None and int(most) >= max(counter, 1):
            yield f"ALTER TABLE {table_name(database, table)} AUTO_INCREMENT = {int(most) + 1}"


def _without_numbers(session: Session, config: DrainerConfig, cluster_id: int) -> Iterator[str]:
    """Columns that TiDB gives random numbers, and this server none."""
    cache = history_cache(config.checkpoint_dir, cluster_id)
    jobs = cache.load() if cache is not None else []
    if not jobs:
        yield f"not known here: the history is beside {config.checkpoint_dir} of the Drainer's machine"
    elif session.flavour is not Flavour.TIDB:
        history, selection = SchemaHistory.of(jobs), Selection.of(config.apply)
        for table in map(selection.routes.moved, selection.live(history, history.newest_version)):
            if table.info.auto_random_bits:
                names = ", ".join(c.name for c in table.info.handle_columns())
                yield f"{table.schema}.{table.name}: the server makes no number for {names}: each INSERT of an application must give one"


def _sequences(session: Session, schema: str) -> Iterator[str]:
    for database, name in sequences_of(session, own_schemas(schema)):
        place = place_of(session, database, name)
        over = not place.minimum <= place.next_value <= place.maximum
        first = place.minimum if place.increment > 0 else place.maximum
        following = f"gives {first if over else place.next_value}" if place.cycle or not over else "fails, as upstream: it has run out"
        yield f"{database}.{name}: NEXTVAL {following}"


def _promote(config: DrainerConfig, found: Promotion) -> None:
    target = LeasedTarget(partial(connect, config.target, config.apply), config.apply, FEW)
    try:
        target.take(found.cluster_id)
        for attempt in target.retrying():
            with attempt, target.session(attempt) as session:
                for sql in found.statements:
                    lease.check_unlocked(session, target.lease)
                    session.execute(sql)
                lease.promote(session, target.lease)
    finally:
        target.close()
