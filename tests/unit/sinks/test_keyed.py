"""The parts of decoded row changes: those of neighbouring integer handles share one, also as the decoder makes their keys."""

import numpy as np
import pyarrow as pa

from pyspark_tidb_binlog.schemas.codec.rowwriter import encode_insert
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT
from pyspark_tidb_binlog.sinks.engine.keyed import with_keys
from tests.support.ddl_jobs import INT, column, database, history, job, table

HISTORY = history(
    database(1, "d"),
    job(2, 3, table(10, "t", [column(1, "id", {**INT, "Flag": 4099})]), query="CREATE TABLE `t` (`id` INT PRIMARY KEY)", schema_name="d"),
)


def parts() -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """The part, of four, of each of 20,480 rows with consecutive handles from 0 on."""
    at = HISTORY.table_at(10, 2)
    assert at is not None
    event = {"commit_ts": 5, "op": int(Op.INSERT), "table_id": 10, "schema_version": 2}
    rows = [event | {"seq": n, "row": encode_insert(at.info, {1: n}, n)} for n in range(20 * 1024)]
    found: np.ndarray[tuple[int], np.dtype[np.int32]] = (
        with_keys(pa.Table.from_pylist(rows, schema=ROW_EVENT), HISTORY, 4).column("part").to_numpy()
    )
    return found


def test_a_block_of_neighbours_is_in_one_part() -> None:
    blocks = parts().reshape(20, 1024)
    assert (blocks == blocks[:, :1]).all() and set(blocks[:, 0].tolist()) == {0, 1, 2, 3}
