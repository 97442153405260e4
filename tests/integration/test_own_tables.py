"""Our tables at the target, made otherwise than we make them, on a real MariaDB: a start refuses them, and says what to do."""

from collections.abc import Callable, Iterator

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.bootstrap.copy_record import CopyRecord
from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import TargetCheckpoint
from pyspark_tidb_binlog.sinks.mysql.elsewhere import OURS
from pyspark_tidb_binlog.sinks.mysql.mysql_sink import MySQLSink
from pyspark_tidb_binlog.sinks.mysql.own_tables import MADE
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from tests.support.private_mysql import MYSQLD

pytestmark = pytest.mark.mysql

SCHEMA = "own%ta`bl'es"
NAME = "`own%ta``bl'es`"
"""Quoted, for statements without arguments."""
OTHER_ENGINE = "MyISAM" if MYSQLD else "Aria"
ALWAYS = ("checkpoint", *sorted(set(MADE) - {"spark_checkpoint", "spark_bootstrap"}))

Life = Callable[..., None]


def ensure_ours(session: Session, schema: str) -> None:
    TargetCheckpoint(1, schema, OURS).create(session)


@pytest.fixture
def session(mariadb: PrivateMariaDB) -> Iterator[Session]:
    with connect(mariadb.target(), ApplyConfig()) as session:
        yield session
        session.execute(f"DROP DATABASE IF EXISTS {NAME}")
        session.execute("DROP DATABASE IF EXISTS retl")


@pytest.fixture
def life(mariadb: PrivateMariaDB) -> Life:
    """A start and a clean stop."""

    def live(**settings: bool) -> None:
        config = DrainerConfig(target=mariadb.target(), apply=ApplyConfig(checkpoint_schema=SCHEMA, **settings))  # type: ignore[arg-type]
        sink = MySQLSink(config, 1)
        try:
            sink.open(lambda _, ts: 100 if ts is None else ts, SchemaHistory)
        finally:
            sink.close()

    return live


def mended(session: Session, life: Life, **settings: bool) -> str:
    """What a start refuses, mended as it says: the statement."""
    with pytest.raises(ApplyError) as refused:
        life(**settings)
    statement = str(refused.value).partition("execute ")[2].partition(", and start again")[0].partition(" (if")[0]
    session.execute(statement)
    life(**settings)
    return statement


def test_the_checkpoint_of_a_drainer_on_a_server_with_another_default_engine(session: Session, life: Life) -> None:
    session.execute(f"CREATE DATABASE {NAME}")
    session.execute(f"CREATE TABLE {NAME}.checkpoint (clusterID bigint unsigned primary key, checkPoint MEDIUMTEXT) ENGINE={OTHER_ENGINE}")
    assert mended(session, life) == f"ALTER TABLE {NAME}.`checkpoint` ENGINE = InnoDB"


def test_every_table_needs_transactions_and_its_key(session: Session, life: Life) -> None:
    life()
    life()
    for table in ALWAYS:
        session.execute(f"ALTER TABLE {NAME}.{table} ENGINE = MyISAM")
        assert mended(session, life).endswith("ENGINE = InnoDB"), table
        session.execute(f"ALTER TABLE {NAME}.{table} DROP PRIMARY KEY")
        assert "ADD PRIMARY KEY" in mended(session, life), table


@pytest.mark.parametrize("other", ["layout 1", ""])
@pytest.mark.parametrize("name", [name for name in ALWAYS if name != "checkpoint"])
def test_a_table_of_another_layout(session: Session, life: Life, name: str, other: str) -> None:
    life()
    session.execute(f"ALTER TABLE {NAME}.{name} COMMENT = '{other}'")
    with pytest.raises(
        ApplyError,
        match=f"`{name}`.*has the comment '{other}'.*'layout 4'.*start the release that made the table"
        + ("" if other else ".*COMMENT='layout 4'"),
    ):
        life()
    session.execute(f"ALTER TABLE {NAME}.{name} COMMENT = 'layout 4'")
    life()


def test_tables_that_are_made_when_they_are_needed(session: Session, life: Life) -> None:
    life()
    for table, ensure in (
        ("spark_bootstrap", lambda session, schema: CopyRecord(session, 1, schema).ensure()),
        ("spark_checkpoint", ensure_ours),
    ):
        ensure(session, SCHEMA)
        session.execute(f"ALTER TABLE {NAME}.{table} COMMENT = ''")
        with pytest.raises(ApplyError, match="'layout 4'"):
            ensure(session, SCHEMA)
    life(loopback_control=True)
    session.execute("ALTER TABLE retl._drainer_repl_mark ENGINE = MyISAM")
    assert mended(session, life, loopback_control=True).startswith("ALTER TABLE `retl`")
