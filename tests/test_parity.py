"""``docs/parity.md`` is as made, and has a row for every setting, type of DDL and gotcha, with a test or a reason."""

import re
from collections import Counter

import pytest

from pyspark_tidb_binlog.conf.model import DrainerConfig, PumpConfig
from pyspark_tidb_binlog.conf.setting import settings_of
from pyspark_tidb_binlog.schemas.ddl_jobs import JobType
from tests.support.parity_page import OUT, PAGE, ROOT, page, sections, shown

NAMES = [row.name for rows in sections().values() for row in rows]


def named(section: str, pattern: str) -> list[str]:
    """What the pattern finds in the names of the rows of a section of the committed page."""
    lines = PAGE.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0].splitlines()
    return [found for line in lines for found in re.findall(pattern, line.partition(": ")[0])]


def test_the_page_is_as_made() -> None:
    assert PAGE.read_text() == page(), "make parity"


def test_every_row_has_a_test_or_says_why_not() -> None:
    assert [name for name in NAMES if name not in shown() and len(OUT.get(name, "")) < 10] == []


def test_every_marker_and_every_reason_has_its_row() -> None:
    assert {*shown(), *OUT} - {*NAMES} == set()
    assert [name for name, count in Counter(NAMES).items() if count > 1] == []


def test_markers_are_on_tests_and_name_a_row_once() -> None:
    marked = [(test, name) for name, tests in shown().items() for test in tests]
    assert len(marked) > 300
    assert [test for test, _ in marked if "::test_" not in test] == []
    assert [one for one, count in Counter(marked).items() if count > 1] == []


@pytest.mark.parametrize(("section", "model"), [("Settings of the Drainer", DrainerConfig), ("Settings of the Pump", PumpConfig)])
def test_every_setting_has_a_row(section: str, model: type) -> None:
    assert named(section, "`([^`]+)`") == [setting.path for setting in settings_of(model)]


def test_every_type_of_ddl_has_a_row() -> None:
    assert named("Types of DDL (ddl.md 3)", r"(\d+) ") == [str(int(kind)) for kind in JobType]


@pytest.mark.parametrize("name", ["drainer", "ddl", "wire"])
def test_every_gotcha_has_a_row(name: str) -> None:
    numbers = re.findall(r"^(\d+)\. ", (ROOT / "docs" / "spec" / f"{name}.md").read_text().partition("\n## Gotchas\n")[2], re.M)
    assert numbers and named(f"Gotchas of {name}.md", r"\d+") == numbers
