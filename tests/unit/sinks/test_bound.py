"""Values in the place of %s in a statement, beside names that hold anything."""

import pytest

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.sinks.mysql.session import bound


@pytest.mark.parametrize("name", ["tidb%binlog", "50%s", "a%%b", "tick`%s", "it's %d", 'quo"te%', "back\\slash%s"])
def test_names_stay_as_they_are(name: str) -> None:
    table = quote_name(name)
    assert bound(f"UPDATE {table}.t SET a = %s WHERE b = %s", ["x", 7], repr) == f"UPDATE {table}.t SET a = 'x' WHERE b = 7"


def test_a_value_is_not_looked_into_and_a_doubled_sign_is_one() -> None:
    sql = "SELECT %s LIKE '10%%', 'it''s `', 'b\\'`%%', 5 %% 2, %s"
    assert bound(sql, ["%s`", "%%"], repr) == "SELECT '%s`' LIKE '10%', 'it''s `', 'b\\'`%', 5 % 2, '%%'"


@pytest.mark.parametrize("args", [[], [1, 2]])
def test_as_many_values_as_places(args: list[int]) -> None:
    with pytest.raises(TypeError):
        bound("SELECT %s", args, repr)
