"""When two snapshots of a table show the same one."""

from pyspark_tidb_binlog.sinks.mysql.ddl.target_here import ObjectSnapshot, SchemaSnapshot


def picture(create: str = "CREATE TABLE", **ids: int) -> SchemaSnapshot:
    return SchemaSnapshot({"d.t": ObjectSnapshot(create, ids)}, ids_known=True)


def test_the_same_ids_under_other_names_of_the_partitions() -> None:
    """They are recorded by name, in whichever form the server gave it: what counts is which they are."""
    assert picture(a=1, b=2).same_as(picture(c=2, d=1)) and not picture(a=1, b=2).same_as(picture(a=1, b=3))
    assert not picture(a=1).same_as(picture(a=1, b=2))
