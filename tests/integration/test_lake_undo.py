"""The undo of a lake's changes at a real server: what was there before is there again, and what was changed since stays."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.sinks.past.undo_apply import undone
from pyspark_tidb_binlog.sinks.past.undo_plan import UndoPlan
from tests.support.past_scene import lake_of, quoted, states
from tests.support.private_mysql import RealMariaDB
from tests.support.target_rows import rows_of

pytestmark = [pytest.mark.mysql, pytest.mark.mariadb]


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateMariaDB]:
    with RealMariaDB() as made:
        yield made


@pytest.mark.parametrize(
    ("case", "steps", "equal_rows"),
    [
        pytest.param("bank", 4, frozenset(), id="bank"),
        *(
            pytest.param(case, steps, equal, id=case, marks=pytest.mark.slow)
            for case, steps, equal in [
                ("keys", 10, {"g_keys.no_pk"}),
                ("types", 10, set()),
                ("txn", 8, set()),
                ("ddl", 12, set()),
                ("online", 6, set()),
                ("beyond_mysql", 6, set()),
            ]
        ),
    ],
)
def test_the_undo_of_each_span_brings_back_what_was_before(
    case: str, steps: int, equal_rows: frozenset[str], server: PrivateMariaDB, tmp_path: Path
) -> None:
    """From the last span to the first, of all tables that no later DDL changes. ``equal_rows``: tables of which equal rows stay out."""
    past = lake_of(case, tmp_path / "lake", steps)
    known = states(case, server, steps, past)
    ends, rows = sorted(known), 0
    for begin, end in reversed(list(zip(ends, ends[1:], strict=False))):
        if not known[begin]:
            break
        ids = past.ids_of([quoted(name) for name in known[begin]], past.commit_ts)
        plan = UndoPlan(begin, end, list(past.net(begin, end, ids, past.version)))
        done = undone(plan, server.target())
        now = {name: rows_of(server, quoted(name)) for name in known[begin]}
        assert {name for name in now if now[name] != known[begin][name]} <= equal_rows, (begin, end)
        assert {row.table.replace("`", "") for row in done.left} <= equal_rows
        assert not undone(plan, server.target()).rows, "again changes nothing"
        assert {name: rows_of(server, quoted(name)) for name in known[begin]} == now
        rows += done.rows
    assert rows > 0
