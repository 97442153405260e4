"""The transactions of several Pumps in the order of commit_ts, each once. Pure.

A Prewrite that was sent again to another Pump is in two Pumps, and so may be its transaction. Two transactions never have the same commit_ts.

Promises: what comes out has the schema of what comes in (``stages.RAW``, without control rows), in order; the pieces of a huge transaction stay together.
Holds one batch of each Pump.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa


def merged(pumps: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """The rows of all ``pumps``, whose rows have ascending commit_ts."""
    if len(pumps) == 1:
        yield from filter(len, pumps[0])
        return
    heads: dict[int, pa.RecordBatch] = {}
    waiting = dict(enumerate(pumps))
    last_ts, owner = -1, -1
    while True:
        for number in [n for n in waiting if n not in heads]:
            head = next(filter(len, waiting[number]), None)
            if head is None:
                del waiting[number]
            else:
                heads[number] = head
        if not heads:
            return
        bound = min(_ts(head)[-1] for head in heads.values())
        taken: list[pa.RecordBatch] = []
        numbers: list[int] = []
        for number, head in sorted(heads.items()):
            count = int(np.searchsorted(_ts(head), bound, side="right"))
            if count:
                taken.append(head.slice(0, count))
                numbers += [number] * count
            if count < len(head):
                heads[number] = head.slice(count)
            else:
                del heads[number]
        rows = taken[0] if len(taken) == 1 else pa.concat_batches(taken)
        rows, of = _once(rows, np.array(numbers), last_ts, owner)
        if len(rows):
            last_ts, owner = int(_ts(rows)[-1]), int(of[-1])
            yield rows


def _ts(rows: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return rows.column("commit_ts").to_numpy()  # type: ignore[no-any-return]


def _once(
    rows: pa.RecordBatch, of: np.ndarray[tuple[int], np.dtype[np.int64]], last_ts: int, owner: int
) -> tuple[pa.RecordBatch, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """``rows`` in order, each commit_ts from one Pump only: the first Pump that gave it. For ``last_ts`` that is ``owner``."""
    ts = _ts(rows)
    order = np.lexsort((of, ts))
    ts, of = ts[order], of[order]
    begins = np.flatnonzero(np.diff(ts, prepend=-1))
    first = np.repeat(of[begins], np.diff([*begins, len(ts)]))
    first[ts == last_ts] = owner
    kept = of == first
    order = order[kept]
    if len(order) == len(rows) and bool((np.diff(order) > 0).all()):
        return rows, of
    return rows.take(pa.array(order)), of[kept]
