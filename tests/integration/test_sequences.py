"""Sequences of a target that is promoted: NEXTVAL gives no number that the upstream has given."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, SourceConfig, TableRoute
from pyspark_tidb_binlog.jobs.check import promote
from pyspark_tidb_binlog.jobs.ctl import main
from pyspark_tidb_binlog.jobs.entry.local_paths import history_cache
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ConfigError, LeaseHeld
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from pyspark_tidb_binlog.sinks.engine.segments import SetVal
from pyspark_tidb_binlog.sinks.mysql.sequences import set_sequences
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from tests.support.arena import Arena, Cut
from tests.support.ddl_jobs import database, history, job, table
from tests.support.ddl_target import committed, dying
from tests.support.emulated_stream import MODES, EmulatedStream
from tests.support.golden_case import GOLDEN
from tests.support.settings_file import toml
from tests.support.target_rows import run_sql

pytestmark = [pytest.mark.mysql, pytest.mark.mariadb]

MARKS = "seq_marks"
ITEM = Table("item", (Column("id", "bigint"),), ("id",))


@pytest.fixture
def session(mariadb: PrivateMariaDB) -> Iterator[Session]:
    run_sql(mariadb, "CREATE OR REPLACE DATABASE shop", "CREATE OR REPLACE DATABASE other")
    with connect(mariadb.target(), ApplyConfig()) as session:
        yield session
        session.rollback()
    run_sql(mariadb, "DROP DATABASE shop", "DROP DATABASE other", f"DROP DATABASE IF EXISTS {MARKS}")


UP = "MINVALUE 1 MAXVALUE 10"
DOWN = "INCREMENT BY -3 MINVALUE -11 MAXVALUE 1"


@pytest.mark.parametrize(
    ("options", "values", "following"),
    [
        ("START WITH 10 INCREMENT BY 2 CACHE 5", (18, 28, 38, 38, 1010), 1012),
        ("START WITH 1 NOCACHE", (1, 2, 3), 4),
        ("START WITH 1", (2000, 1000, 0), 2001),  # two servers; and SELECT SETVAL of one that has not taken numbers yet
        ("START WITH -1 INCREMENT BY -1 MINVALUE -5000 MAXVALUE -1", (-2000, -1000, 0), -2001),
        (f"{UP} CYCLE NOCACHE", (9, 10, 1, 2), 3),
        (f"{UP} CYCLE CACHE 4", (4, 8, 10, 4, 8, 10, 4), 5),
        (f"{UP} CYCLE CACHE 4", (8, 4), 9),
        (f"{UP} CYCLE CACHE 4", (8, 10), 1),
        (f"{UP} INCREMENT BY 4 CYCLE CACHE 2", (5, 9, 5), 9),
        (f"START WITH 1 {DOWN} CYCLE CACHE 2", (-2, -8, -11, -2), -5),
        (f"{UP} NOCYCLE", (10, 3), None),
    ],
)
def test_a_sequence_goes_on_where_the_upstream_is(session: Session, options: str, values: tuple[int, ...], following: int | None) -> None:
    """At once, one by one, and all of them a second time, as after a crash."""
    for steps in ([values], [(v,) for v in values], [values, values], [*((v,) for v in values), *((v,) for v in values)]):
        session.execute(f"CREATE OR REPLACE SEQUENCE shop.s {options}")
        for step in steps:
            assert set_sequences(session, [SetVal("shop", "s", value) for value in step]) == ()
        assert session.query("SELECT NEXTVAL(shop.s)" if following else "SELECT next_not_cached_value > 10 FROM shop.s") == [
            (following or 1,)
        ]


class Stream(EmulatedStream):
    """With SETVALs."""

    def setval(self, sequence: str, value: int) -> None:
        binlog = binlog_pb2.Binlog(tp=binlog_pb2.Prewrite, start_ts=self.upstream.oracle.next(), ddl_job_id=999_999, ddl_schema_state=5)
        binlog.ddl_query = f"SELECT SETVAL({sequence}, {value});".encode()
        self.payloads.append(binlog.SerializeToString())
        binlog.tp, binlog.commit_ts = binlog_pb2.Commit, self.upstream.oracle.next()
        self.payloads.append(binlog.SerializeToString())

    def insert(self, number: int) -> None:
        self.change(lambda txn: txn.insert("shop.item", {"id": number}))


@pytest.mark.spark
@pytest.mark.shows("ddl SELECT SETVAL", "ddl gotcha 9")
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_filtered_renamed_missing_and_a_crash(
    mode: dict[str, object], spark: SparkSession, mariadb: PrivateMariaDB, session: Session
) -> None:
    apply = ApplyConfig(
        checkpoint_schema=MARKS,
        ignore_schemas=("other",),
        routes=(TableRoute(db_name="shop", tbl_name="old", to_tbl="renamed"),),
        **mode,  # type: ignore[arg-type]
    )
    for sequence in ("shop.s", "shop.renamed", "other.s"):
        session.execute(f"CREATE SEQUENCE {sequence}")
    with Stream(spark, DrainerConfig(target=mariadb.target(), apply=apply)) as stream:
        stream.create("shop", ITEM)
        stream.apply()
        for number in range(3):
            stream.insert(number)
            for sequence in ("`shop`.`s`", "`shop`.`old`", "`other`.`s`", "`shop`.`missing`"):
                stream.setval(sequence, 1000 * (number + 1))
        with dying("before-downstream-commit"):
            stream.apply()
        assert session.query("SELECT next_not_cached_value FROM shop.s") == [(3001,)], "the checkpoint does not say so yet"
        stream.restart()
        found = list(stream.apply().findings)
        for number in (4000, 5000):
            for sequence in ("`shop`.`s`", "`shop`.`missing`"):
                stream.setval(sequence, number)
            found += stream.apply().findings
        assert [(f.table, "SETVAL is refused" in f.words) for f in found] == [("`shop`.`missing`", True)], "said once"
    assert session.query("SELECT NEXTVAL(shop.s), NEXTVAL(shop.renamed), NEXTVAL(other.s)") == [(5001, 3001, 1)]
    assert session.query("SELECT id FROM shop.item ORDER BY id") == [(0,), (1,), (2,)]


@pytest.mark.spark
@pytest.mark.grpc
@pytest.mark.parametrize("delivery", ["sorted", "raw"])
def test_the_recorded_sequence_after_a_fail_over(delivery: str, spark: SparkSession, fresh_mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    more = {"syncer.replicate-do-db": "g_rep_seq"}
    with Arena(load(GOLDEN / "reports"), fresh_mariadb, tmp_path, delivery, Cut(step_bytes=500, max_bytes=3000), more) as arena:
        arena.write()
        arena.drain(spark)
        assert run_sql(fresh_mariadb, "SELECT MAX(v) FROM g_rep_seq.u") == [(1002,)]
        assert run_sql(fresh_mariadb, "SELECT NEXTVAL(g_rep_seq.sq)") == [(1012,)]


@pytest.mark.spark
@pytest.mark.shows("ctl promote")
def test_promoted(
    spark: SparkSession, mariadb: PrivateMariaDB, session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Printed, applied, and every later start refused until a person wants it."""
    config = DrainerConfig(
        target=mariadb.target(),
        apply=ApplyConfig(checkpoint_schema=MARKS),
        source=SourceConfig(cluster_id=7),
        checkpoint_dir=str(tmp_path / "spark"),
        delta_dir=str(tmp_path / "delta"),
    )
    with pytest.raises(ConfigError, match="no Drainer of this project has written"):
        promote.main(config, apply=False)
    cache = history_cache(config.checkpoint_dir, 7)
    assert cache is not None
    cache.store([*history(database(1, "shop"), job(2, 3, table(11, "r", auto_random_bits=5), schema_name="shop")).jobs.values()])
    session.execute("CREATE SEQUENCE shop.s")
    session.execute("CREATE SEQUENCE shop.turns MINVALUE 1 MAXVALUE 3 CYCLE")
    session.execute("CREATE TABLE shop.f (id FLOAT AUTO_INCREMENT PRIMARY KEY)")  # this server counts other types on UPDATE, too
    committed(session, "INSERT INTO shop.f VALUES (1e10)")
    behind = "ALTER TABLE `shop`.`f` AUTO_INCREMENT = 10000000001"
    with Stream(spark, config) as stream:
        stream.create("shop", ITEM)
        stream.setval("`shop`.`s`", 2000)
        stream.setval("`shop`.`turns`", 3)
        stream.setval("`shop`.`missing`", 2000)
        stream.insert(1)
        stream.apply()
        assert promote.main(config, apply=False) == 1
        assert "writes here: stop it first" in capsys.readouterr().out
        with pytest.raises(LeaseHeld, match="Stop that Drainer first"):
            promote.main(config, apply=True)
    before = session.query(f"SELECT * FROM {MARKS}.spark_lease")
    session.rollback()
    capsys.readouterr()
    assert promote.main(config, apply=False) == 0
    out = capsys.readouterr().out
    for words in (
        "; consistent",
        "nobody writes here",
        behind,
        "shop.r: the server makes no number for id",
        "shop.s: NEXTVAL gives 2001",
        "shop.turns: NEXTVAL gives 1",
        "Nothing was changed",
    ):
        assert words in out
    assert session.query(f"SELECT * FROM {MARKS}.spark_lease") == before
    session.rollback()
    to = config.target
    file = toml(
        tmp_path,
        f'[syncer.to]\nuser = "{to.user}"\npassword = "{to.password}"\n[syncer.to.checkpoint]\nschema = "{MARKS}"\n[spark]\nsocket = "{to.socket}"\ncluster-id = 7\n',
    )
    assert main(["promote", "-config", str(file), "-apply"]) == 0
    assert session.query("SELECT auto_increment FROM information_schema.tables WHERE table_name = 'f'") == [(10_000_000_001,)]
    for attempt in (lambda: promote.main(config, apply=True), stream.apply):
        stream.restart()
        with pytest.raises(ConfigError, match="promoted.* by ctl promote on .* at .* UTC.*UPDATE `seq_marks`.`spark_lease` SET life = ''"):
            attempt()
    stream.restart()
    session.rollback()
    committed(session, f"UPDATE {MARKS}.spark_lease SET life = '' WHERE cluster_id = 7")
    stream.insert(2)
    stream.apply()
    stream.restart()
    assert session.query("SELECT COUNT(*) FROM shop.item") == [(2,)]
