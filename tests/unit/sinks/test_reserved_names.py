"""Which words of a text are names that a target reserves, and which are TiDB's own."""

import pytest

from pyspark_tidb_binlog.schemas.ddl_tokens import text_of, tokenize
from pyspark_tidb_binlog.sinks.mysql.ddl.text import quote_reserved


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("CREATE VIEW v AS SELECT offset FROM t LIMIT 5 OFFSET 10", "CREATE VIEW v AS SELECT `offset` FROM t LIMIT 5 OFFSET 10"),
        ("CREATE VIEW v AS SELECT a FROM t ORDER BY offset LIMIT 5", "CREATE VIEW v AS SELECT a FROM t ORDER BY `offset` LIMIT 5"),
        ("ALTER TABLE t DROP offset", "ALTER TABLE t DROP `offset`"),
        ("ALTER TABLE t ADD Period INT, DROP returning", "ALTER TABLE t ADD `Period` INT, DROP `returning`"),
        ("ALTER TABLE t STATS_PERSISTENT = 0, PAGE_CHECKSUM 1", "ALTER TABLE t STATS_PERSISTENT = 0, PAGE_CHECKSUM 1"),
        ("CREATE TABLE t (stats_persistent INT, CHECK (stats_persistent = 1)) STATS_PERSISTENT DEFAULT",
         "CREATE TABLE t (`stats_persistent` INT, CHECK (`stats_persistent` = 1)) STATS_PERSISTENT DEFAULT"),
        ("CREATE VIEW v AS SELECT a FROM t WHERE page_checksum = 1", "CREATE VIEW v AS SELECT a FROM t WHERE `page_checksum` = 1"),
        ("CREATE TABLE t (a INT, KEY grouping (a))", "CREATE TABLE t (a INT, KEY `grouping` (a))"),
        ("CREATE VIEW v AS SELECT GROUPING (a), 1 IN (a) FROM t", "CREATE VIEW v AS SELECT GROUPING (a), 1 IN (a) FROM t"),
        ("CREATE VIEW v AS SELECT a member, b sounds FROM t WHERE 1 MEMBER OF (j)",
         "CREATE VIEW v AS SELECT a `member`, b `sounds` FROM t WHERE 1 MEMBER OF (j)"),
        ("CREATE VIEW v AS SELECT @offset, 'offset', `offset` FROM t -- offset", "CREATE VIEW v AS SELECT @offset, 'offset', `offset` FROM t -- offset"),
    ],
)  # fmt: skip
def test_a_name_is_quoted_and_a_clause_is_not(text: str, wanted: str) -> None:
    assert text_of(quote_reserved(tokenize(text))) == wanted
