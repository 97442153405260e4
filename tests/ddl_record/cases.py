"""The DDLs of the record: golden cases, the cases of the tests of DDLs, and random ones."""

import functools
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyspark_tidb_binlog.conf.model import TableRoute
from pyspark_tidb_binlog.schemas.ddl_jobs import JobReader
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.history_fold import TableSnapshot
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlEvent, DdlStep, plan_steps
from tests.ddl_record.random_ddls import FIRST_TS, SECOND, Tidb
from tests.support import ddl_jobs
from tests.support.golden_case import ddl_steps, load_case

KINDS = Path(__file__).parent / "kinds.json.gz"
"""Written by ``tests.ddl_record.collect``."""
GOLDEN = ("ddl", "beyond_mysql", "online", "types", "keys", "txn", "bank")
SEEDS = range(80)
DDLS_A_SEED = 25
SETS = ("golden", "kinds", "random")


@dataclass(frozen=True)
class Case:
    """A history that begins with an empty target."""

    name: str
    history: SchemaHistory
    steps: list[DdlStep]

    @functools.cached_property
    def tables(self) -> list[tuple[str, str]]:
        """Database and name of every table at any time, upstream."""
        ids = {i for step in self.steps for i in self.history.tables_of_job(step.job)}
        entries = (entry for i in ids for entry in self.history.tracks[i].entries if isinstance(entry, TableSnapshot))
        return sorted({(entry.schema.lower(), entry.name.lower()): (entry.schema, entry.name) for entry in entries}.values())

    @property
    def databases(self) -> list[str]:
        """Every database, upstream."""
        return sorted({step.job.schema_name for step in self.steps} | {schema for schema, _ in self.tables})

    def routes(self) -> tuple[TableRoute, ...]:
        """Every database under another name, and every second table under another one in the first of them."""
        into = f"{self.databases[0]}_r"
        tables = (TableRoute(db_name=db, tbl_name=name, to_db=into, to_tbl=f"R_{db}_{name}"[:60]) for db, name in self.tables[::2])
        return (*(TableRoute(db_name=db, to_db=f"{db}_r") for db in self.databases), *tables)


def cases_of(name: str) -> Iterator[Case]:
    """The cases of a set."""
    if name == "golden":
        for case in map(load_case, GOLDEN):
            yield Case(str(case.info["databases"][0]), case.history, ddl_steps(case))
    elif name == "kinds":
        for test, (jobs, texts) in json.loads(gzip.decompress(KINDS.read_bytes())).items():
            history = ddl_jobs.history(*jobs)
            yield Case(test, history, ddl_jobs.steps_of(history, {int(number): text for number, text in texts.items()}))
    else:
        yield from map(random_case, SEEDS)


def random_case(seed: int) -> Case:
    """The DDLs of one seed."""
    tidb = Tidb(seed)
    for _ in range(DDLS_A_SEED):
        tidb.draw()
    history = SchemaHistory.of(JobReader().read(tidb.jobs))
    events = [DdlEvent(FIRST_TS + number * SECOND - 1, number, text, 5) for number, text in tidb.texts.items()]
    steps = plan_steps((0, FIRST_TS * 2), events, (), history, AppliedJobs(0))
    return Case(f"seed {seed}", history, [s for s in steps if isinstance(s, DdlStep)])
