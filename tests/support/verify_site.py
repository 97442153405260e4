"""An upstream and its target on one MariaDB: the database ``up`` is replicated as ``down``, and what a Drainer would have written is made by hand."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, TableRoute, TargetConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.verify import verification
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SnapshotSource
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import ensure_ddl_table
from pyspark_tidb_binlog.sinks.mysql.password import Here, ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from pyspark_tidb_binlog.sinks.verify.standing import STATEMENTS
from pyspark_tidb_binlog.sinks.verify.verification import Begun, RoundDone, Verification, VerifiedTable
from tests.support.leases import held
from tests.support.recorded import record_in, set_checkpoint
from tests.support.settings_file import toml

MARKS = "verify_marks"


class HeldSnapshots(SnapshotSource):
    """Snapshots of a MariaDB that are held open, in place of TiDB's ``tidb_snapshot``: what was there when S was committed, and not what came behind."""

    def __init__(self, server: TargetConfig) -> None:
        super().__init__(ShippedTarget.of(server, Here))
        self._held: dict[int, list[Session]] = {}

    def hold(self, ts: int, count: int) -> None:
        """Keep so many sessions at what is committed now."""
        for _ in range(count):
            session = self._connect()
            for statement in STATEMENTS[session.flavour]:
                session.execute(statement)
            self._held.setdefault(ts, []).append(session)

    def close(self) -> None:
        for sessions in self._held.values():
            for session in sessions:
                session.close()

    def _open_at(self, ts: int) -> Session:
        return self._held[ts].pop()


def tables_of(
    run: Verification, between: Callable[[RoundDone], None] = lambda found: None, begun: Begun | None = None
) -> list[VerifiedTable]:
    """What a run finds; ``between`` is called between two rounds."""
    found = []
    for event in run.run(begun):
        if isinstance(event, RoundDone):
            between(event)
        else:
            found.append(event)
    return found


@dataclass
class VerifySite:
    """Both sides, and the record."""

    server: PrivateMariaDB
    settings: dict[str, Any] = field(default_factory=dict)
    ts: int = 100

    def __post_init__(self) -> None:
        self.source = HeldSnapshots(self.server.target())
        self.session = connect(self.server.target(), ApplyConfig())
        self.session.execute("SET SESSION autocommit = 1")
        for name in ("up", "down"):
            self.session.execute(f"CREATE OR REPLACE DATABASE {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        self.session.execute(f"DROP DATABASE IF EXISTS {MARKS}")
        self.session.use("up")
        self.record = record_in(self.session, MARKS)
        ensure_ddl_table(self.session, self.config.apply)
        self.lease = held(self.session, schema=MARKS)
        self.at(self.ts)

    @property
    def config(self) -> DrainerConfig:
        given: dict[str, Any] = {"routes": (TableRoute(db_name="up", to_db="down"),), "replicate_do_db": ("up",)} | self.settings
        return DrainerConfig(target=self.server.target(), apply=ApplyConfig(checkpoint_schema=MARKS, **given))

    def written(self, directory: Path, more: str = "") -> Path:
        """The settings as a file; ``more``: of ``[syncer]``."""
        target = self.config.target
        return toml(
            directory,
            f"""
[syncer]
db-type = "mysql"
replicate-do-db = ["up"]
{more}
[syncer.to]
user = "{target.user}"
password = "{target.password}"
[syncer.to.checkpoint]
schema = "{MARKS}"
[spark]
socket = "{target.socket}"
delta-dir = "{directory}/delta"
[[spark.route]]
db-name = "up"
to-db = "down"
""",
        )

    def at(self, ts: int, *, consistent: bool = True) -> None:
        """The Drainer has committed everything up to ``ts``."""
        self.ts = ts
        set_checkpoint(self.session, self.record, ts, consistent=consistent)

    def sql(self, *statements: str) -> None:
        for statement in statements:
            self.session.execute(statement)

    def both(self, *statements: str) -> None:
        """``{}`` is the database."""
        for statement in statements:
            self.sql(statement.replace("{}", "up"), statement.replace("{}", "down"))

    def hold(self, times: int = 1) -> None:
        """The upstream's snapshot at the record's S, to be read so many times."""
        self.source.hold(self.ts, times * self.config.apply.parts)

    def run(self, *patterns: str) -> Verification:
        """A verification at what is there now."""
        self.hold()
        return verification(self.config, self.source, patterns)[0]

    def verified(self, *patterns: str) -> dict[str, VerifiedTable]:
        return {table.name.removeprefix("up."): table for table in tables_of(self.run(*patterns))}

    def table(self, name: str = "t") -> VerifiedTable:
        return self.verified(f"up.{name}")[name]

    def record_ddl(self, job_id: int, state: str, commit_ts: int, *, early: int = 0, version: int = 1, query: str = "") -> None:
        self.session.execute(
            f"REPLACE INTO {MARKS}.spark_ddl (cluster_id, job_id, commit_ts, version, early, state, query, began) VALUES (1, %s, %s, %s, %s, %s, %s, NOW(3))",
            [job_id, commit_ts, version, early, state, query],
        )

    def repaired(self, table: VerifiedTable) -> Sequence[str]:
        """What is printed for a table, executed."""
        statements = [sql for difference in table.tally.listed for sql in difference.sql(self.session.flavour)]
        self.sql(*statements)
        return statements

    def close(self) -> None:
        self.source.close()
        for name in ("up", "down", MARKS):
            self.session.execute(f"DROP DATABASE IF EXISTS {name}")
        self.session.close()
