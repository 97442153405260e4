"""When two snapshots of a table show the same one."""

from pyspark_tidb_binlog.sinks.mysql.ddl.snapshots import ObjectSnapshot, SchemaSnapshot

KEYED = """CREATE TABLE `t` (
  `my_row_id` bigint unsigned NOT NULL AUTO_INCREMENT /*!80023 INVISIBLE */,
  `a` int DEFAULT NULL,
  PRIMARY KEY (`my_row_id`),
  KEY `a` (`a`)
) ENGINE=InnoDB"""
BARE = """CREATE TABLE `t` (
  `a` int DEFAULT NULL,
  KEY `a` (`a`)
) ENGINE=InnoDB"""


def picture(create: str = "CREATE TABLE", **ids: int) -> SchemaSnapshot:
    return SchemaSnapshot({"d.t": ObjectSnapshot(create, ids)}, ids_known=True)


def test_the_same_ids_under_other_names_of_the_partitions() -> None:
    """They are recorded by name, in whichever form the server gave it: what counts is which they are."""
    assert picture(a=1, b=2).same_as(picture(c=2, d=1)) and not picture(a=1, b=2).same_as(picture(a=1, b=3))
    assert not picture(a=1).same_as(picture(a=1, b=2))


def test_the_key_that_the_server_has_made_is_no_difference() -> None:
    """An intent of a former release may show it; a key of that name over more is somebody's own."""
    assert picture(KEYED).same_as(picture(BARE)) and picture(BARE).same_as(picture(KEYED))
    assert not picture(KEYED).same_as(picture(BARE.replace("int", "bigint")))
    assert not picture(KEYED.replace("(`my_row_id`)", "(`my_row_id`,`a`)")).same_as(picture(BARE))


def test_what_a_build_before_has_recorded_of_the_server_is_not_known() -> None:
    text = picture(a=1).to_json().replace('"server": {}', '"server": "server_id=1"')
    assert SchemaSnapshot.from_json(text).server == {} and "server_id=1" in text
