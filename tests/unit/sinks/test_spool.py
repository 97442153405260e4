"""``sinks.engine.keyed.RowSpool``: the same rows come out, from memory and from a file, and no file is left."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.sinks.engine.keyed import RowSpool

SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("row", pa.binary())])


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield
    assert list(tmp_path.iterdir()) == []


def rows(first: int, count: int) -> pa.Table:
    return pa.table({"n": range(first, first + count), "row": [b"x" * n for n in range(count)]}, schema=SCHEMA)


@pytest.mark.parametrize("bound", [1 << 20, 300, 0])
def test_rows_come_out_as_they_went_in(bound: int) -> None:
    with RowSpool(SCHEMA, bound) as spool:
        whole = spool.extend(rows(n * 20, 20) for n in range(5)).table()
        assert whole.equals(pa.concat_tables([rows(n * 20, 20) for n in range(5)]))
    with RowSpool(SCHEMA, bound) as spool:
        assert spool.table().num_rows == 0


def test_a_spool_that_fails_half_way_leaves_no_file() -> None:
    def breaks() -> Iterator[pa.Table]:
        yield rows(0, 20)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"), RowSpool(SCHEMA, 0) as spool:
        spool.extend(breaks())
