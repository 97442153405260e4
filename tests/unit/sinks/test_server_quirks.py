"""What is done around a statement at a MySQL that gives tables keys of its own; the rest is shown on servers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pyspark_tidb_binlog.schemas.errors import ServerRefused
from pyspark_tidb_binlog.sinks.mysql.ddl.server_quirks import Around, SentDdl, around, execute
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import Subject, subject_of
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from tests.support.ddl_jobs import INT, column, history, job, steps_of, table

SETTING = "SET SESSION sql_generate_invisible_primary_key"
DROP = "ALTER TABLE `d`.`t` DROP PRIMARY KEY"


@dataclass
class FakeServer:
    """Refuses statements by number, and shows no table."""

    refusals: dict[str, list[int]]
    words: str = ""
    flavour: Flavour = Flavour.MYSQL
    version: str = "8.4.0"
    autocommit: bool = True
    seen: list[str] = field(default_factory=list)

    def execute(self, sql: bytes | str, args: Sequence[Any] | None = None) -> int:
        self.seen.append(str(sql))
        if errno := next(iter([errors.pop(0) for text, errors in self.refusals.items() if errors and text in str(sql)]), 0):
            raise ServerRefused(f"error {errno}", errno, self.words)
        return 0

    def query(self, sql: str, args: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        return [] if "information_schema" in sql else [(1,)]

    def use(self, database: str) -> None: ...
    def begin(self) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...


def subject() -> Subject:
    h = history(job(2, 3, table(10, "t")), job(3, 33, table(10, "t", [column(2, "n", INT)], pk_is_handle=False)))
    return subject_of(steps_of(h, {3: DROP})[1], h)


def sent(server: FakeServer, sql: str = DROP, error: ServerRefused | None = None) -> SentDdl:
    return SentDdl(server, subject(), Dialect(server.flavour), sql, error)


@pytest.mark.parametrize("errno", [4108, 4109, 1235])
def test_what_cannot_have_a_key_of_the_server_is_executed_without(errno: int) -> None:
    server = FakeServer({DROP: [errno]}, "PRIMARY KEY ... '@@sql_generate_invisible_primary_key' is ON")
    execute(sent(server))
    assert server.seen == [DROP, f"{SETTING} = 0", DROP, f"{SETTING} = 1"]


@pytest.mark.parametrize(
    ("refusals", "errno"),
    [
        ({DROP: [4109, 3750]}, 4109),  # a key is required
        ({DROP: [4109], SETTING: [1227, 1227]}, 4109),  # the account may not choose
        ({DROP: [4109, 1050]}, 1050),
        ({DROP: [1235]}, 1235),  # something else is not supported
    ],
)
def test_a_refusal_names_what_is_in_the_way(refusals: dict[str, list[int]], errno: int) -> None:
    with pytest.raises(ServerRefused) as caught:
        execute(sent(FakeServer(refusals)))
    assert caught.value.errno == errno


def test_a_row_applies_at_its_server_only() -> None:
    twice, sql = ServerRefused("", 1068), "ALTER TABLE `d`.`t` ADD PRIMARY KEY (`n`)"
    assert around(sent(FakeServer({}), sql, twice)) == Around(sql="ALTER TABLE `d`.`t` DROP COLUMN `my_row_id`, ADD PRIMARY KEY (`n`)")
    assert not around(sent(FakeServer({}, flavour=Flavour.TIDB), sql, twice)).sql
