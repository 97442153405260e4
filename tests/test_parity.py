"""``docs/parity.md`` held against the tests that there are, the settings of the model and the types of DDL."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from pyspark_tidb_binlog.conf.model import DrainerConfig, PumpConfig, settings_of
from pyspark_tidb_binlog.schemas.ddl_jobs import JobType
from tests.integration import test_known_wrong

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "parity.md").read_text()
TEST = re.compile(r"`(tests/[^`:]+\.py)::(test_\w+)`")


class Row(NamedTuple):
    section: str
    what: str
    tests: str


def rows() -> list[Row]:
    found, section = [], ""
    for line in TEXT.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("| ") and not line.startswith("| what |"):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            assert len(cells) == 2, line
            found.append(Row(section, cells[0].strip(), cells[1].strip()))
    return found


@cache
def known_tests(path: str) -> frozenset[str]:
    """The tests of a file that pytest collects: functions of the module, and methods of its classes."""
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    nodes = list(ast.parse(file.read_text()).body)
    nodes += [inner for node in nodes if isinstance(node, ast.ClassDef) for inner in node.body]
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))


def test_every_test_that_is_named_is_there() -> None:
    named = TEST.findall(TEXT)
    assert len(named) > 300
    assert [f"{path}::{name}" for path, name in named if name not in known_tests(path)] == []


def test_every_row_names_a_test_or_says_why_not() -> None:
    wrong = [row for row in rows() if not (row.tests.startswith("out: ") or re.fullmatch(rf"{TEST.pattern}(, {TEST.pattern})*", row.tests))]
    assert wrong == []
    assert [row for row in rows() if row.tests.startswith("out: ") and len(row.tests) < 15] == [], "why"


def test_nothing_stands_there_twice() -> None:
    names = [(row.section, row.what) for row in rows()]
    assert [name for name in names if names.count(name) > 1] == []


@pytest.mark.parametrize(("section", "model"), [("Settings of the Drainer", DrainerConfig), ("Settings of the Pump", PumpConfig)])
def test_every_setting_has_a_row_and_every_row_a_setting(section: str, model: type) -> None:
    wanted = {f"`{s.path}`" + (f" (`-{s.flag}`)" if s.flag else "") for s in settings_of(model)}
    assert {row.what for row in rows() if row.section == section} == wanted


def test_every_setting_is_built() -> None:
    assert [row.what for row in rows() if row.section.startswith("Settings") and row.tests.startswith("open: ")] == []


def test_every_type_of_ddl_has_a_row() -> None:
    listed = {int(row.what.split()[0]) for row in rows() if row.section == "Types of DDL (ddl.md 3)" and row.what[0].isdigit()}
    assert listed == {int(kind) for kind in JobType}


def test_every_gotcha_has_a_row() -> None:
    for page in ("drainer", "ddl", "wire"):
        spec = (ROOT / "docs" / "spec" / f"{page}.md").read_text().partition("\n## Gotchas\n")[2]
        numbers = set(re.findall(r"^(\d+)\. ", spec, re.M))
        assert numbers, page
        assert {row.what.partition(".")[0] for row in rows() if row.section == f"Gotchas of {page}.md"} == numbers


def test_what_is_known_wrong_in_the_real_one_is_listed_alike() -> None:
    here = {row.what: row.tests for row in rows() if row.section == "Known wrong in the real Drainer"}
    assert here.keys() == test_known_wrong.SHOWN_BY.keys()
    for what, ids in test_known_wrong.SHOWN_BY.items():
        assert [name for path, name in (one.split("::") for one in ids) if name not in known_tests(path)] == [], what
        assert [one for one in ids if f"`{one}`" not in here[what]] == [], what
