"""A due Commit whose Prewrite pairing no longer keeps: the whole transaction is read from the Pump that has both. gRPC shell.

Example: a Prewrite was settled as rolled back, but its transaction committed. A Commit wins over a Rollback, in sorted delivery as in
pairing, but pairing has already dropped the Prewrite. The Pump's log holds it until it is collected.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark_tidb_binlog.binlog_source.source.pull import Endpoint
from pyspark_tidb_binlog.binlog_source.source.span_read import ReadTerms, read_sorted
from pyspark_tidb_binlog.schemas.errors import ReplicationError
from pyspark_tidb_binlog.schemas.events import as_time

_PATIENCE = 5.0
"""Seconds to wait for a Pump's answer."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Late:
    """A complete Commit read from a Pump: its payload, or its pieces by ``first_seq`` if it is huge."""

    start_ts: int
    commit_ts: int
    pieces: Mapping[int, bytes]


@dataclass(frozen=True, slots=True)
class Asked:
    """The Pumps' answers, and why some Pumps could not be read."""

    found: Sequence[Late]
    failures: Mapping[str, str]


def ask(missing: Sequence[tuple[int, int]], endpoints: Mapping[str, Endpoint]) -> Asked:
    """The transactions (start_ts, commit_ts) of ``missing`` that a Pump has complete. A Pump that fails is not asked again."""
    found: list[Late] = []
    failures: dict[str, str] = {}
    for start_ts, commit_ts in missing:
        for pump, endpoint in endpoints.items():
            if pump in failures:
                continue
            try:
                pieces = _pieces(endpoint, start_ts, commit_ts)
            except ReplicationError as error:
                failures[pump] = str(error)
                continue
            if pieces:
                _log.warning(
                    "start_ts %d was settled as rolled back, and committed at %d (%s) later: "
                    "the Commit wins, and the rows come from the Prewrite on Pump %s",
                    start_ts, commit_ts, as_time(commit_ts), pump,
                )  # fmt: skip
                found.append(Late(start_ts, commit_ts, pieces))
                break
    return Asked(found, failures)


def _pieces(endpoint: Endpoint, start_ts: int, commit_ts: int) -> dict[int, bytes]:
    pieces: dict[int, bytes] = {}
    accepting = ReadTerms(_PATIENCE, lambda *lost: None)
    for records in read_sorted(endpoint, commit_ts - 1, commit_ts, accepting):
        for place, payload in enumerate(records.payloads):
            if int(records.start_ts[place]) == start_ts and int(records.commit_ts[place]) == commit_ts:
                pieces[int(records.first_seqs[place])] = bytes(payload)
    return pieces
