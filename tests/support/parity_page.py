"""``docs/parity.md``: which tests show what of the real Drainer and Pump.

``python -m tests.support.parity_page`` writes it (``make parity``); a test fails while it differs. Its rows come from the models of the settings,
from ``JobType`` and from the gotchas of docs/spec; the others, and the order of the sections, from ``tests/parity.toml``. The tests of a row are
those that ``@pytest.mark.shows("row")`` marks, read without importing them.
"""

import ast
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

from pyspark_tidb_binlog.conf.model import DrainerConfig, PumpConfig
from pyspark_tidb_binlog.conf.setting import settings_of
from pyspark_tidb_binlog.schemas.ddl_jobs import JobType

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "parity.md"
_DATA = tomllib.loads((ROOT / "tests" / "parity.toml").read_text())
OUT: dict[str, str] = _DATA["out"]
"""Why a row, by its name, is not built."""
_PREFACE = """\
# Parity with the real Drainer and Pump

Made by `make parity` from the marker `shows` of the tests, and `tests/parity.toml`.

What [the specification](spec/README.md) has, with the tests that show it: `unit/conf/test_load::NAME` is in `tests/unit/conf/test_load.py`. `out`: not built, and why.
Gotchas have the numbers of the pages [drainer](spec/drainer.md#gotchas), [ddl](spec/ddl.md#gotchas) and [wire](spec/wire.md#gotchas)."""


@dataclass(frozen=True, slots=True)
class Row:
    """``name`` is a marker's word for it, ``what`` the page's."""

    name: str
    what: str


def sections() -> dict[str, list[Row]]:
    """The rows of each section of the page."""
    made = {"Settings of the Drainer": _settings(DrainerConfig, ""), "Settings of the Pump": _settings(PumpConfig, "pump ")}
    words = {kind: kind.name.lower().replace("_", " ") for kind in JobType}
    made["Types of DDL (ddl.md 3)"] = [Row(f"ddl {text}", f"{int(kind)} {text}") for kind, text in words.items()]
    made |= {f"Gotchas of {page}.md": _gotchas(page) for page in ("drainer", "ddl", "wire")}
    return {title: made.get(title, []) + [Row(*one) for one in others.items()] for title, others in _DATA["sections"].items()}


@cache
def shown() -> dict[str, list[str]]:
    """The tests that show each row, as ``unit/conf/test_load::function``, by the names in their markers."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text, place = path.read_text(), path.relative_to(ROOT / "tests").with_suffix("").as_posix()
        functions = ast.walk(ast.parse(text)) if "mark.shows(" in text else ()
        for function in (node for node in functions if isinstance(node, ast.FunctionDef)):
            for mark in function.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.shows":
                    for name in mark.args:
                        found.setdefault(ast.literal_eval(name), []).append(f"{place}::{function.name}")
    return found


def page() -> str:
    """``docs/parity.md``; neighbours with the same tests are one line."""
    lines = [_PREFACE]
    for title, rows in sections().items():
        lines.append(f"\n## {title}\n")
        for shows, alike in groupby(rows, _shows):
            lines.append("- " + ": ".join((", ".join(row.what for row in alike), *shows)))
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page."""
    PAGE.write_text(page())
    return 0


def _shows(row: Row) -> list[str]:
    """Why it is not built, and its tests."""
    tests = ", ".join(f"`{test}`" for test in shown().get(row.name, ()))
    return [*([f"out: {OUT[row.name]}"] if row.name in OUT else []), *([tests] if tests else [])]


def _settings(model: type, job: str) -> list[Row]:
    return [Row(job + one.path, f"`{one.path}`") for one in settings_of(model)]


def _gotchas(name: str) -> list[Row]:
    text = (ROOT / "docs" / "spec" / f"{name}.md").read_text().partition("\n## Gotchas\n")[2]
    return [Row(f"{name} gotcha {number}", number) for number in re.findall(r"^(\d+)\. ", text, re.M)]


if __name__ == "__main__":
    raise SystemExit(main())
