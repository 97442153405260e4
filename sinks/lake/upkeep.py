"""The ledger stays quick: small files become few, the log stays short, and files that nothing needs go. A thread beside the steps.

A commit slows down with the number of live files, and on a local disk with the number of files in the log. So

    compaction   files are read, sorted by table and place, and written again beside the stream. One commit of the sink swaps them: a step waits
                 for that commit only. The table is append-only, so what was read stays right whatever steps come between.
    retention    row changes that are too old go in the same way, once a day; their DDLs come into files of their own
    log          a checkpoint of the log's own, then the versions that it replaces are removed but for the newest ``LOG_VERSIONS``
    sweep        removed files, and those of attempts that died, go after ``KEPT_HOURS``

Promises: at each death the ledger holds each row once. A writer that was suspended swaps nothing once another one has begun, and removes no file that the
newest version has. What fails is logged and tried again: the stream goes on.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.schemas.errors import ApplyError, LeaseLost
from pyspark_tidb_binlog.sinks.lake.lake_table import DDLS, FULL, LiveFile, WrittenPart, without_logs
from pyspark_tidb_binlog.sinks.lake.ledger import Ledger, Superseded
from pyspark_tidb_binlog.sinks.lake.old_versions import OldChanges

_log = logging.getLogger(__name__)

MOST_OPEN = 40
"""Files that are not closed before they are compacted."""
LOOK_EVERY = 20
"""New files, or commits, between two looks."""
CHECKPOINT_EVERY = 100
"""Versions that a reader's start reads one by one."""
_SWEEP_SECONDS = 3600.0

Swap = Callable[[Sequence[WrittenPart], Sequence[LiveFile], int | None], None]


def due(files: Sequence[LiveFile]) -> list[LiveFile]:
    """The files to be written again together, in the order of their rows; pure.

    The newest half of ``MOST_OPEN``, and older ones while each is not larger than all newer ones together: a row is rewritten as often as sizes double.
    """
    still_open = sorted((f for f in files if not f.closed), key=lambda f: (f.first_ts, f.path))
    if len(still_open) < MOST_OPEN:
        return []
    begin, size = len(still_open), 0
    while begin and (len(still_open) - begin < MOST_OPEN // 2 or still_open[begin - 1].size <= size):
        begin -= 1
        size += still_open[begin].size
    return still_open[begin:]


class Upkeep:
    """Upkeep of one ledger by the sink that has the lease."""

    def __init__(
        self, ledger: Ledger, swap: Swap, settled: Callable[[], None], old_changes: Callable[[], OldChanges | None] = lambda: None
    ) -> None:
        """``ledger``: a handle of its own. ``swap``: commits files in place of others, and where the ledger begins if that changes, or raises ``LeaseLost``.
        ``settled``: returns once no step writes files that began before. ``old_changes``: what is not to be kept; None: all is.
        """
        self._ledger, self._swap, self._settled, self._old_changes = ledger, swap, settled, old_changes
        self._new = 0
        self._wake, self._ended = threading.Event(), threading.Event()
        self._checkpoint = 0
        self._swept_at = float("-inf")
        self._thread = threading.Thread(target=self._run, name="lake-upkeep", daemon=True)

    def start(self) -> None:
        """Begin with a look."""
        self._wake.set()
        self._thread.start()

    def committed(self, files: int) -> None:
        """A commit has added so many files."""
        self._new += max(1, files)
        if self._new >= LOOK_EVERY:
            self._new = 0
            self._wake.set()

    def end(self) -> None:
        """Return when nothing is written any more; a compaction that is under way is given up."""
        self._ended.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """Do what is due.

        Raises:
            ApplyError: it failed; ``LeaseLost``: another writer has begun.
        """
        state = self._ledger.load()
        if (chosen := due(self._ledger.files())) and self._replace(chosen, self._ledger.rewritten(chosen, self._ended.is_set)):
            self._wake.set()
        if state is not None and (old := self._old_changes()) is not None and old.upto_ts > state.begin_ts:
            self._remove(old)
        if self._ledger.version >= self._checkpoint + CHECKPOINT_EVERY:
            self._ledger.shorten_log()
            self._checkpoint = self._ledger.version
        if time.monotonic() - self._swept_at >= _SWEEP_SECONDS:
            self._ledger.sweep(self._settled)
            self._swept_at = time.monotonic()

    def _remove(self, old: OldChanges) -> None:
        files = self._ledger.files()
        chosen = [file for file in files if file.first_ts <= old.upto_ts and not file.only_ddls]
        if not chosen:
            return
        if len(few := [file for file in files if file.only_ddls]) >= MOST_OPEN:
            chosen += few
        kinds = ((old.ddls, DDLS), (old.others, FULL))
        parts = [part for of in kinds for part in self._ledger.rewritten(chosen, self._ended.is_set, *of)]
        self._replace(chosen, parts, old.upto_ts)

    def _replace(self, chosen: Sequence[LiveFile], parts: Sequence[WrittenPart], begin_ts: int | None = None) -> bool:
        """Commit ``parts`` in place of files; whether that was done."""
        failpoints.point("before-compaction-commit")
        swapped = False
        try:
            if not self._ended.is_set():
                self._swap(parts, chosen, begin_ts)
                swapped = True
        except Superseded as error:
            _log.warning("a compaction of %s is given up: %s", self._ledger.uri, error)
        failpoints.point("after-compaction-commit")
        without_logs(self._ledger.uri, parts)
        _log.debug("%d files of %s are now %d", len(chosen), self._ledger.uri, len(parts))
        if swapped:
            self._ledger.load()
        return swapped

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._ended.is_set():
                return
            try:
                self.look()
            except LeaseLost:
                return
            except ApplyError as error:
                _log.warning("the upkeep of %s failed and is tried again: %s", self._ledger.uri, error)
