"""The notebook as Jupyter opens it is what the generator makes of its source, and valid."""

import configparser
import json
from pathlib import Path

import fastjsonschema
import pytest

from benchmarks.notebook_form import HEADER, SOURCE, Cell, cells_of, jupyter_form
from pyspark_tidb_binlog.conf.version import VERSION

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "tests" / "support" / "nbformat" / "v4.5.schema.json"
BETWEEN = "\n# COMMAND ----------\n\n"


def test_the_committed_file_is_what_the_generator_makes() -> None:
    assert SOURCE.with_suffix(".ipynb").read_text() == jupyter_form(cells_of(SOURCE.read_text())), "run `make notebook`"


def test_it_is_valid_by_jupyters_own_schema() -> None:
    notebook = json.loads(SOURCE.with_suffix(".ipynb").read_text())
    validate = fastjsonschema.compile(json.loads(SCHEMA.read_text()))
    validate(notebook)
    ids = [cell.pop("id") for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    with pytest.raises(fastjsonschema.JsonSchemaException):
        validate(notebook)


def test_each_kind_of_cell() -> None:
    source = BETWEEN.join(
        [
            f"{HEADER}# MAGIC %md\n# MAGIC # Title\n# MAGIC\n# MAGIC text",
            "# MAGIC %md one line",
            "# MAGIC %pip install a b",
            "x = 1\n\n# y\n",
        ]
    )
    cells = cells_of(source)
    assert cells == [Cell("# Title\n\ntext", True), Cell("one line", True), Cell("%pip install a b"), Cell("x = 1\n\n# y")]
    assert [cell.is_command for cell in cells] == [False, False, True, False]
    made = json.loads(jupyter_form(cells))["cells"]
    assert [cell["cell_type"] for cell in made] == ["markdown", "markdown", "code", "code"]
    assert made[3]["source"] == ["x = 1\n", "\n", "# y"] and made[3]["outputs"] == []


@pytest.mark.parametrize("source", ["x = 1\n", f"{HEADER}# MAGIC %md text\nx = 1\n"])
def test_what_is_no_such_notebook_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match="source form|with and without"):
        cells_of(source)


def test_the_cell_that_installs_names_this_version_and_leaves_pyspark_alone() -> None:
    """Databricks has a PySpark of its own, which another one beside it would break. A path and not a name: nobody else's package can be taken."""
    (command,) = [cell.text for cell in cells_of(SOURCE.read_text()) if cell.is_command]
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(ROOT / "setup.cfg")
    name = setup["metadata"]["name"].replace("-", "_")
    words = command.split()
    assert words[:2] == ["%pip", "install"] and f"../dist/{name}-{VERSION}-py3-none-any.whl" in words
    assert not [word for word in words if "pyspark" in word or word in ("--upgrade", "-U", "--force-reinstall")]
