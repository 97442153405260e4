"""What is told of rows that a MODIFY converts otherwise than upstream."""

from typing import Any

import pytest

from pyspark_tidb_binlog.sinks.mysql.ddl.row_values import converted_otherwise
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import subject_of
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from tests.support.ddl_jobs import INT, VARCHAR, column, database, history, job, steps_of, table

FLOAT, DOUBLE, DECIMAL, TIME, DATETIME = ({**INT, "Tp": tp} for tp in (4, 5, 246, 11, 12))
DATE, DATETIME_3, TIME_3 = {**INT, "Tp": 10}, {**DATETIME, "Decimal": 3}, {**TIME, "Decimal": 3}
TEXT, BLOB = {**VARCHAR, "Tp": 252}, {**VARCHAR, "Tp": 252, "Charset": "binary", "Collate": "binary"}
JSON = {**INT, "Tp": 245}


def told(was: dict[str, Any], now: dict[str, Any], flavour: Flavour = Flavour.MARIADB) -> tuple[str, ...]:
    before, after = (table(10, "t", [column(1, "id"), column(i, "c", kind)]) for i, kind in ((2, was), (3, now)))
    h = history(database(1), job(2, 3, before), job(3, 12, after))
    return converted_otherwise(subject_of(steps_of(h)[2], h), flavour)


@pytest.mark.parametrize(
    ("was", "now", "flavour", "words"),
    [
        (FLOAT, VARCHAR, Flavour.MARIADB, "its numbers became texts"),
        (DOUBLE, BLOB, Flavour.MYSQL, "its numbers became texts"),
        (DOUBLE, DECIMAL, Flavour.MARIADB, ""),
        (DECIMAL, VARCHAR, Flavour.MARIADB, ""),
        (TEXT, JSON, Flavour.MARIADB, "its texts stay as they were written"),
        (TEXT, JSON, Flavour.MYSQL, ""),
        (FLOAT, VARCHAR, Flavour.TIDB, ""),
        (VARCHAR, TEXT, Flavour.MARIADB, ""),
        (JSON, VARCHAR, Flavour.MYSQL, "its JSON became texts"),
        (JSON, BLOB, Flavour.MYSQL, "its JSON became texts"),
        (JSON, VARCHAR, Flavour.MARIADB, ""),
        (DATETIME_3, DATE, Flavour.MYSQL, "its times in the last half"),
        (DATETIME_3, DATE, Flavour.MARIADB, ""),
        (DATETIME, DATE, Flavour.MYSQL, ""),
        (DATETIME_3, INT, Flavour.MARIADB, "its fractions of seconds were cut off"),
        (TIME_3, {**INT, "Tp": 8}, Flavour.MARIADB, "its fractions of seconds were cut off"),
        (TIME_3, INT, Flavour.MYSQL, ""),
    ],
)
def test_what_is_told(was: dict[str, Any], now: dict[str, Any], flavour: Flavour, words: str) -> None:
    found = told(was, now, flavour)
    assert len(found) == bool(words)
    assert all(text.startswith(f"d.t: column c: {words}") and text.endswith("--bootstrap d.t") for text in found)
