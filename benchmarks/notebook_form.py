"""The notebook as Jupyter opens it, ``notebooks/replicate.ipynb``, made from Databricks' source form, ``notebooks/replicate.py``.

    python -m benchmarks.notebook_form

Promises: pure but for ``main``; the same source gives the same bytes. A cell is Markdown, one ``%`` command or Python, never two of them.
"""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "notebooks" / "replicate.py"
HEADER = "# Databricks notebook source\n"
_BETWEEN = re.compile(r"^# COMMAND -{10}\n", re.M)
_MAGIC = "# MAGIC"
_MARKDOWN = "%md"


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell."""

    text: str
    is_markdown: bool = False

    @property
    def is_command(self) -> bool:
        """Whether it is for the notebook, as ``%pip``, and not Python."""
        return not self.is_markdown and self.text.startswith("%")


def cells_of(source: str) -> list[Cell]:
    """The cells of a notebook in Databricks' source form.

    Raises:
        ValueError: it is none, or a cell has both ``MAGIC`` lines and others.
    """
    if not source.startswith(HEADER):
        raise ValueError(f"this is no notebook in Databricks' source form: it does not begin with {HEADER!r}")
    return [_cell_of(part.strip("\n")) for part in _BETWEEN.split(source.removeprefix(HEADER)) if part.strip()]


def _cell_of(part: str) -> Cell:
    lines = part.splitlines()
    magic = [line.startswith(_MAGIC) for line in lines]
    if not any(magic):
        return Cell(part)
    if not all(magic):
        raise ValueError(f"a cell has lines with and without {_MAGIC}:\n{part}")
    text = "\n".join(line.removeprefix(_MAGIC).removeprefix(" ") for line in lines)
    if text.split(maxsplit=1)[0] == _MARKDOWN:
        return Cell(text.removeprefix(_MARKDOWN).strip(), is_markdown=True)
    return Cell(text)


def jupyter_form(cells: Sequence[Cell]) -> str:
    """The cells as the text of an ``.ipynb`` file, without outputs (nbformat 4.5)."""
    made = [
        {
            "cell_type": "markdown" if cell.is_markdown else "code",
            "id": f"cell-{number:02d}",
            "metadata": {},
            "source": cell.text.splitlines(keepends=True),
        }
        | ({} if cell.is_markdown else {"execution_count": None, "outputs": []})
        for number, cell in enumerate(cells, 1)
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    notebook = {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def main() -> int:
    """Write the file beside its source."""
    SOURCE.with_suffix(".ipynb").write_text(jupyter_form(cells_of(SOURCE.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
