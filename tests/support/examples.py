"""How many examples a property test draws."""

import os

from hypothesis import settings


def examples(number: int, **more: object) -> settings:
    """As many in `make property`, which draws new ones; a third of them in `make test`, where they are the same every time. ``more``: of ``settings``."""
    drawn = number if os.environ.get("TIDB_BINLOG_EXAMPLES") == "new" else number // 3
    return settings(max_examples=drawn, deadline=None, **more)  # type: ignore[arg-type]
