"""What tests share that apply DDLs to a real MariaDB: a session that leaves nothing behind, a step under the lease, a death at a point."""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

import pytest

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.choice import decided
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import DdlOutcome, ensure_ddl_table
from pyspark_tidb_binlog.sinks.mysql.ddl.executor import apply_ddl
from pyspark_tidb_binlog.sinks.mysql.ddl.target_here import column_names
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from tests.support.ddl_jobs import steps_of
from tests.support.leases import held

MARKS = "ddl_marks"
CONFIG = ApplyConfig(drainer="ddl", checkpoint_schema=MARKS)


class Unrecorded:
    """A DDL that is known by its text alone, and of which nothing is recorded."""

    def has_executed(self, _: Session) -> bool:
        return False

    def note_executed(self, _: Session) -> None:
        """Nothing."""


class Died(BaseException):
    """Stands for SIGKILL: nothing catches it."""


@contextlib.contextmanager
def ddl_session(target: TargetConfig, config: ApplyConfig = CONFIG, databases: tuple[str, ...] = ("d",)) -> Iterator[Session]:
    """A session where DDLs can be applied; before and afterwards its ``databases`` and its own tables are gone."""

    def clear(session: Session) -> None:
        for name in (*databases, config.checkpoint_schema):
            session.execute(f"DROP DATABASE IF EXISTS {name}")

    with connect(target, config) as session:
        clear(session)  # other tests use the server, too
        ensure_ddl_table(session, config)
        yield session
        session.rollback()
        clear(session)


def apply(session: Session, step: DdlStep, h: SchemaHistory, config: ApplyConfig = CONFIG) -> DdlOutcome:
    """Apply one step as the Drainer that holds the lease."""
    step = decided(step, h, Selection.of(config))
    return apply_ddl(session, step, h, config, held(session, schema=config.checkpoint_schema), lambda _: None)


def committed(session: Session, *statements: str) -> None:
    """What a person or another program executes."""
    for sql in statements:
        session.execute(sql)
    session.commit()


def shown(session: Session, name: str = "d.t") -> str:
    """The statement that makes a table, as the server shows it."""
    return str(session.query(f"SHOW CREATE TABLE {name}")[0][1])


def forget(session: Session) -> None:
    """Another stream's start: nothing is there, and nothing is recorded."""
    committed(session, "DROP DATABASE d", f"DELETE FROM {MARKS}.spark_ddl")


def losses(session: Session, config: ApplyConfig = CONFIG, cluster_id: int = 1) -> list[str]:
    """Everything that this cluster's DDLs had to leave out so far."""
    rows = session.query(
        f"SELECT losses FROM {config.checkpoint_schema}.spark_ddl WHERE cluster_id = %s AND losses IS NOT NULL ORDER BY version",
        [cluster_id],
    )
    return list(dict.fromkeys(text for (found,) in rows for text in json.loads(found)))


def assert_columns(session: Session, history: SchemaHistory, version: int, databases: list[str]) -> None:
    """Every table has the columns that the history says, in their order."""
    for database in databases:
        for table in history.tables_in(database, version):
            if not table.info.is_sequence:
                wanted = tuple(c.name for c in table.info.public_columns() if not c.hidden)
                assert column_names(session, table.schema, table.name) == wanted


@contextlib.contextmanager
def deadly(point: str) -> Iterator[None]:
    """Whoever comes to the fault point dies there; it need not be reached."""

    def die(name: str) -> None:
        if name == point:
            raise Died

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "point", die)
        yield


@contextlib.contextmanager
def dying(point: str) -> Iterator[None]:
    """What is done inside dies at the fault point."""
    with deadly(point), pytest.raises(Died):
        yield


def die(session: Session, step: DdlStep, h: SchemaHistory, point: str, config: ApplyConfig = CONFIG) -> None:
    """Apply one step, and die at the fault point; nothing where the point has no name."""
    if point:
        with dying(point):
            apply(session, step, h, config)
        session.rollback()


def apply_all(session: Session, steps: Iterable[DdlStep], h: SchemaHistory, config: ApplyConfig = CONFIG) -> list[DdlOutcome]:
    """Apply the steps, one after the other."""
    return [apply(session, step, h, config) for step in steps]


def prepared(
    session: Session, h: SchemaHistory, texts: Mapping[int, str] = MappingProxyType({}), *by_hand: str, config: ApplyConfig = CONFIG
) -> DdlStep:
    """Apply every DDL of the history but the last one, and then what a person executes; the last step."""
    *others, last = steps_of(h, texts)
    apply_all(session, others, h, config)
    committed(session, *by_hand)
    return last
