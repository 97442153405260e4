"""The states of rows, in the types of a mirror, under the columns of one definition. Pure.

Promises: a state for each change: the row after it, or that there is none. A row whose first change is no insert has a state of commit_ts 0 before it.
"""

import numpy as np
import pyarrow as pa

from pyspark_tidb_binlog.schemas.changes.change_rows import columns_of, commit_time
from pyspark_tidb_binlog.schemas.changes.variant_values import VARIANT, laid_out
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.sinks.lake.net_changes import ORDER, mirror_cells
from pyspark_tidb_binlog.sinks.past.net_rows import PastSchema, images_under

HISTORY_MARKS = {"commit_ts": "bigint", "seq": "int", "row_key": "binary", "there": "boolean", "chain": "bigint", "ends": "timestamp"}
"""The columns before the table's own, and their types. ``chain``: the id under which the row ended, or is; ``ends``: when a DDL took it."""


def typed_history(rows: pa.Table, schema: PastSchema, target: TableAt) -> pa.Table:
    """The states that ``rows`` (``NET_COLUMNS``) leave, of a table that is ``target`` at the end."""
    rows = rows.sort_by(ORDER).combine_chunks()
    keys = rows["row_key"].combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    ids, upto = rows["table_id"].to_numpy(), max(int(target.version), int(schema.history.newest_version))
    ends, which = schema.ends_of(ids, rows["commit_ts"].to_numpy(), upto)
    chains = np.array([table_id for table_id, _ in ends], np.int64)[which]
    _, first = np.unique(np.stack([chains, keys]), axis=1, return_index=True)
    was = first[rows["before"].combine_chunks().is_valid().to_numpy(zero_copy_only=False)[first]]
    at = np.concatenate([was, np.arange(rows.num_rows)])
    sides = pa.concat_arrays([rows["before"].combine_chunks().take(pa.array(was)), rows["after"].combine_chunks()])
    # Columns go on over a TRUNCATE, too.
    images = images_under(sides, ids[at], rows["commit_ts"].to_numpy()[at], schema.passing(schema.history.jobs), target)
    commit_ts = np.concatenate([np.zeros(len(was), np.int64), rows["commit_ts"].to_numpy()])
    # Not its FinishedTS, which is later: rows of then may be in the table that follows.
    ended = np.array([schema.begin_of(int(job.version)) if job is not None else 0 for _, job in ends], np.int64)[which[at]]
    times = commit_time(ended)
    marks = [
        pa.array(commit_ts),
        rows["seq"].combine_chunks().take(pa.array(at)),
        rows["row_key"].combine_chunks().take(pa.array(at)),
        sides.is_valid(),
        pa.array(chains[at]),
        pa.array(times.to_pylist(), times.type, mask=ended == 0),
    ]
    cells = [laid_out(mirror_cells(column, found), VARIANT) for column, found in columns_of(target.info, images)]
    return pa.Table.from_arrays([*marks, *cells], names=[*HISTORY_MARKS, *(c.name for c in target.info.target_columns())])
