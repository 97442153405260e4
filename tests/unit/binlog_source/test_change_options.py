"""Options of changes: defaults, names of tables, what is left for the reading, refusals."""

import pytest

from pyspark_tidb_binlog.binlog_source.changes.change_options import OPS, SchemaEvolution, change_options_of, is_protocol, reading_options
from pyspark_tidb_binlog.binlog_source.source.options import options_of, source_of
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.schemas.changes.table_names import NamedTable, NamedTables
from pyspark_tidb_binlog.schemas.changes.typed_cells import InvalidDates
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import ts_at, tso


def test_changes_are_the_default_and_the_drainers_options_say_protocol() -> None:
    assert not is_protocol({"pumps": "a:1"}) and not is_protocol({"Format": "Changes"})
    assert is_protocol(options_of(SourceConfig("a:1"))) and is_protocol({"FORMAT": "protocol"})


def test_options_as_a_person_writes_them() -> None:
    found = change_options_of(
        {
            "pumps": "a:1",
            "TABLE": "`a.b`.t",
            "ops": "Insert, ddl",
            "schemaevolution": "IGNORE",
            "invalidDates": "string",
            "heartbeats": "true",
        }
    )
    assert (found.table, found.ops) == (NamedTable("a.b", "t"), ("insert", "ddl"))
    assert (found.evolution, found.invalid_dates, found.heartbeats) == (SchemaEvolution.IGNORE, InvalidDates.STRING, True)
    plain = change_options_of({"pumps": "a:1"})
    assert (plain.table, plain.ops, plain.evolution, plain.heartbeats) == (None, OPS, SchemaEvolution.FAIL, False)


def test_the_reading_is_sorted_and_knows_nothing_of_changes() -> None:
    options = {
        "pumps": "a:1",
        "tables": "a.*",
        "heartbeats": "true",
        "maxBytesPerTrigger": "5",
        "startingTimestamp": "2026-11-20T08:00:00+08:00",
    }
    found = source_of(reading_options(options))
    assert (found.delivery, found.max_bytes_per_trigger, found.ending_commit_ts) == ("sorted", 5, 0)
    assert found.starting_commit_ts == ts_at("x", "2026-11-20", last=False)


def test_a_time_is_a_span_of_ts() -> None:
    first, last = (ts_at("x", "1970-01-01T00:00:01.5", last=last) for last in (False, True))
    assert first < tso(1500) <= last < tso(1501) and (first + 1, last + 1) == (tso(1500), tso(1501))


@pytest.mark.parametrize(
    ("patterns", "yes", "no"),
    [
        ("", ["a.b", "Shop.item"], ["mysql.user", "tidb_binlog.checkpoint", "SYS.x"]),
        ("shop.*, crm.c_?", ["SHOP.x", "crm.C_1"], ["crm.c_10", "a.b"]),
        ("mysql.*", ["mysql.user"], ["a.b"]),
        ("`a,b`.`c.d`", ["a,b.c.d"], ["a.b"]),
        ("`a*`.*, b.`c?`", ["A*.x", "b.c?"], ["abc.x", "b.cd"]),
    ],
)
def test_patterns_choose_tables(patterns: str, yes: list[str], no: list[str]) -> None:
    names = NamedTables.of(patterns)
    cut = [tuple(text.rsplit(".", 2)[-2:]) if "," not in text else ("a,b", "c.d") for text in (*yes, *no)]
    assert [names.choose(*pair) for pair in cut] == [True] * len(yes) + [False] * len(no)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"table": "t"}, "option table is 't'"),
        ({"table": "a.b, c.d"}, "option table is 'a.b, c.d': give one as db.table"),
        ({"tables": "a"}, "option tables is 'a'"),
        ({"ops": ""}, "option ops is ''"),
        ({"heartbeats": "yes"}, "heartbeats is 'yes': give false or true"),
        ({"historyLag": "long"}, "historyLag is 'long': give a number"),
        ({"readPartitions": "few"}, "readPartitions is 'few'"),
        ({"bucketIds": "1"}, "no option bucketids"),
        ({"schemaCommitTs": "x"}, "schemaCommitTs is 'x'"),
    ],
)
def test_what_has_no_sense_is_named(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        change_options_of({"pumps": "a:1"} | options)


@pytest.mark.parametrize(("name", "value"), [("startingCommitTs", "-7"), ("endingCommitTs", "-1"), ("startingCommitTs", "soon")])
def test_a_start_or_an_end_that_is_no_ts_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"option {name} is '{value}': give a "):
        reading_options({"pumps": "a:1", name: value})


@pytest.mark.parametrize("text", ["yesterday", "1969-12-31", ""])
def test_what_is_no_time_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="option startingTimestamp is"):
        reading_options({"pumps": "a:1", "startingTimestamp": text})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"readPartitions": "nan"}, "option readPartitions is 'nan': give a whole number"),
        ({"historyLag": "nan"}, "option historyLag is 'nan': give a number of seconds"),
        ({"historyTimeout": "inf"}, "option historyTimeout is 'inf': give a number of seconds"),
        ({"schemaCommitTs": "4.5e17"}, "option schemaCommitTs is '4.5e17': give a whole number"),
        ({"schemaCommitTs": "-5"}, "option schemaCommitTs is '-5': give a TSO"),
        ({"tabels": "a.b"}, "has no option tabels; did you mean tables?"),
        ({"recorded": "x", "pumpPatience": "1", "heartbeats": "true"}, "option recorded reads files, and no Pump: leave out pumpPatience"),
    ],
)
def test_numbers_and_names_that_cannot_be_meant(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("?", r"\?")):
        change_options_of(options)


def test_a_ts_keeps_its_digits_and_a_bracket_is_a_sign() -> None:
    assert change_options_of({"schemaCommitTs": " 446000000000000001 "}).schema_ts == 446000000000000001
    assert NamedTables.of("a.t[1]").choose("a", "t[1]") and not NamedTables.of("a.t[1]").choose("a", "t1")
    with pytest.raises(ConfigError, match="before the year 3000"):
        ts_at("startingTimestamp", "9999-12-31", last=False)
