"""No benchmark is broken by what moves in the project: each loads, with all that it imports."""

from importlib import import_module
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.mark.parametrize("name", sorted(path.stem for path in BENCHMARKS.glob("[a-z]*.py")))
def test_it_loads(name: str) -> None:
    assert import_module(f"benchmarks.{name}").__doc__
