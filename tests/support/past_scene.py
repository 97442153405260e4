"""A lake with a golden case, and the same case in a server, moment by moment: what an undo must bring back."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.stream.targets import sink_of
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.sinks.lake.lake_sink import LakeSettings, LakeSink
from pyspark_tidb_binlog.sinks.lake.lake_table import scanned
from pyspark_tidb_binlog.sinks.lake.ledger import Ledger
from pyspark_tidb_binlog.sinks.lake.moments import COLUMNS, Published, Snapshots
from pyspark_tidb_binlog.sinks.past.past_changes import PastChanges
from tests.support.golden_case import GOLDEN
from tests.support.golden_messages import replicate, spans_of
from tests.support.target_rows import rows_of, run_sql

Rows = dict[str, Counter[tuple[bytes | None, ...]]]


def lake_of(case: str, lake: Path, steps: int, interval: float = 3600.0) -> PastChanges:
    """The whole case in a lake, read without Spark."""
    sink = LakeSink(LakeSettings(str(lake), 1, mirror_interval=interval))
    replicate(sink, case, spans_of(case, steps))
    sink.close()
    return past_of(lake)


def past_of(lake: Path) -> PastChanges:
    newest, state, rows = Snapshots(str(lake)).load(), Ledger(str(lake)).load(), scanned(f"{lake}/snapshots", COLUMNS, "true")
    assert newest is not None and state is not None and state.commit_ts is not None and rows is not None
    return PastChanges(str(lake), Published(rows.read_all(), newest, state.begin_ts), state.commit_ts)


def names(case: str) -> list[str]:
    return [f"{database}.{table}" for database, table in load(GOLDEN / case).tables]


def quoted(name: str) -> str:
    return ".".join(map(quote_name, name.split(".", 1)))


def states(case: str, server: PrivateMariaDB, steps: int, past: PastChanges) -> dict[int, Rows]:
    """The case in the server, and by the end of each span what its tables were that no later DDL changes."""
    found: dict[int, Rows] = {}

    def spans() -> Iterator[tuple[int, int]]:
        for span in spans_of(case, steps):
            yield span
            found[span[1]] = {name: rows_of(server, quoted(name)) for name in standing(case, past, span[1])}

    for database in {name.partition(".")[0] for name in names(case)} | {"tidb_binlog"}:
        run_sql(server, f"DROP DATABASE IF EXISTS {database}")
    target = sink_of(DrainerConfig(target=server.target()), 1, lambda seconds: None)
    replicate(target, case, spans())  # type: ignore[arg-type]
    target.close()
    return found


def standing(case: str, past: PastChanges, ts: int) -> list[str]:
    """The tables that are at ``ts`` what they are at the end."""
    history, version = past.schema.history, past.schema.version_at(ts)
    found = []
    for name in names(case):
        table = history.find(*name.split("."), past.version)
        if (
            table is not None
            and int(table.version) <= version
            and not any(table.table_id in history.tables_of_job(job) for job in past.jobs(ts, past.commit_ts))
        ):
            found.append(name)
    return found
