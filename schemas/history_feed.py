"""Reads the DDL history over HTTP from a status port of TiDB (``GET /ddl/history``), or from a recorded ``.json`` or ``.json.gz`` file.

The settings name the status ports, or a function returns those of the TiDB servers that PD knows now.

Promises:

* The whole history is read once, in pages (``?limit=N&start_job_id=S``, newest first), and cached if a cache is given. Later reads get only
  new jobs. A cache that contradicts the status port is discarded with a warning.
* A job appears in the history shortly after its binlog commits, but only when no transaction is open at an older schema version.
  ``wait_for_job`` therefore polls as long as a status port answers.
* Each request goes to the address that answered last, then to the others. ``HistoryUnavailable`` has the addresses and what to do.
"""

import contextlib
import gc
import gzip
import json
import logging
import math
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark_tidb_binlog.schemas.backoff import Backoff, Retries, steady
from pyspark_tidb_binlog.schemas.ddl_jobs import Job, JobReader
from pyspark_tidb_binlog.schemas.errors import Corruption, HistoryUnavailable, PumpUnavailable
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt, TableNow
from pyspark_tidb_binlog.schemas.history_cache import HistoryCache
from pyspark_tidb_binlog.schemas.http_client import FAILURES, fetch
from pyspark_tidb_binlog.schemas.schema_snapshot import SnapshotJobs
from pyspark_tidb_binlog.schemas.tls import TlsSettings

_FIRST_PAGE, _PAGE = 8, 256
_OVERLAP = 256
"""Job ids that each refresh reads again: a job with a lower id may finish after one with a higher id."""
_DEEP = 4096
"""Job ids that a refresh for overtaken jobs reads again at most, of those that began after the whole history was read."""
_REQUEST_TIMEOUT = 10.0
_BACKOFF, _POLL = Backoff(0.02, 0.5), steady(0.1)
_SHOW_SECONDS, _TELL_SECONDS = 2.0, 30.0
"""After how long a wait is shown, and how often it is logged."""
_NO_SUCH_TABLE = b"1146"
"""Error code in TiDB's answer, which has status 400."""
_UNTOLD_SECONDS = 30.0
"""How long rows wait for a status port, if the history may already explain their version; and after how long the port is asked again."""
_CACHE_AGAIN = 512
"""New jobs beyond the cache at a start above which the cache is rewritten."""
_log = logging.getLogger(__name__)


class HistoryFeed:
    """The DDL history of one cluster."""

    timeout = 300.0
    """Seconds without an answer of a status port, while the history is needed, after which a wait fails. TiDB servers restart within them."""
    lag = 5.0
    """Seconds that rows wait if their schema version is beyond the history: a running job may have that version."""

    def __init__(
        self,
        where: str | Callable[[], Sequence[str]],
        cache: HistoryCache | None,
        tls: TlsSettings | None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """``where``: status ports of one cluster, as in ``http://host:port,http://host:port``; or the path of a recorded history; or a
        function that returns the URLs of the status ports, called before each request. ``tls``: the cluster's, for ``https://``.
        ``pause`` sleeps between requests; it may raise to stop a wait.
        """
        self._path = Path("" if callable(where) else where)
        self._urls = where if callable(where) else _listed(where)
        self._answered = ""
        """The URL that answered last."""
        self._untold_until = 0.0
        """Until when (monotonic) no port is asked about rows that the history may explain, because no port has answered."""
        self._cache = cache
        self._tls = tls
        self._highest = 0
        """The highest job id read."""
        self._first = 0
        """The highest job id when the whole history was read."""
        self._reader = JobReader()
        self._history: SchemaHistory | None = None
        self._stamp: tuple[int, int] = (0, 0)
        self._snapshot: SnapshotJobs | None = None
        self.pause = pause
        self.waiting_for = ""
        """What the stream waits for, in words; empty = nothing. May be read from any thread."""

    @property
    def is_recorded(self) -> bool:
        """True for a file: no jobs are expected to appear in it."""
        return self._urls is None

    def snapshot(self) -> SchemaHistory:
        """The history read so far; the first call reads all of it."""
        return self._history if self._history is not None else self.refresh()

    def refresh(self, *, overtaken: bool = False) -> SchemaHistory:
        """Read the new jobs. ``overtaken``: also those that so many younger jobs have overtaken that one page does not reach them, in at most
        ``_DEEP / _PAGE`` pages.
        """
        if self.is_recorded:
            return self._reread_file()
        if self._history is None:
            self._history = self._read_all()
            return self._history
        down_to = max(self._first, self._highest - _DEEP) if overtaken else self._highest
        return self._fetch_down_to(down_to - _OVERLAP, _PAGE)

    def poll(self, enough: Callable[[SchemaHistory], bool], lag: float) -> bool:
        """Refresh until ``enough`` holds; False when it does not after ``lag`` seconds in which a status port answers.

        Raises:
            HistoryUnavailable: the history could not be read for ``timeout`` seconds; a recorded one, at once.
        """
        unanswered, answered, tell = Retries(_POLL, self.timeout), Retries(_POLL, lag, sleep=self.pause), _Telling()
        try:
            while True:
                try:
                    if enough(self.refresh()):
                        return True
                    if self.is_recorded or answered.over:
                        return False
                    unanswered.restart()
                except HistoryUnavailable as error:
                    if self.is_recorded or unanswered.over:
                        raise
                    self.waiting_for = f"the DDL history, for up to {self.timeout:g} s: {error}"
                    tell(self.waiting_for)
                    answered.restart()
                answered.pause()
        finally:
            self.waiting_for = ""

    def begin_with(self, snapshot: SnapshotJobs) -> None:
        """From now on the history is ``snapshot`` and the jobs after it."""
        jobs = self.snapshot().jobs.values()
        self._snapshot = snapshot
        self._history = SchemaHistory.of([*snapshot.jobs, *map(snapshot.without_effect, jobs)])

    def note_committed(self, commit_ts: Mapping[int, int]) -> None:
        """Count these jobs (by id) as finished at the commit_ts of their binlogs, until they are read again (``SchemaHistory.version_at``)."""
        jobs = self.snapshot().jobs.values()
        self._history = SchemaHistory.of(replace(job, finished_ts=commit_ts.get(job.id, job.finished_ts)) for job in jobs)

    def wait_for_job(self, job_id: int, stop: Callable[[], bool] = lambda: False) -> Job:
        """Poll until the job ``job_id`` is in the history. There is no limit while a status port answers.

        Raises:
            HistoryUnavailable: the history could not be read for ``timeout`` seconds, a recorded history still lacks the job after that time,
                or ``stop()`` returned True. The text includes the last error.
        """
        unanswered = Retries(_BACKOFF, self.timeout)
        trouble = ""
        with self.waits(
            f"DDL job {job_id} in the history at {self._where}: the job's binlog was read, and its DDL may wait for an open transaction at the upstream "
            "(see ADMIN SHOW DDL JOBS). If the upstream has no such job, spark.tidb-status names another cluster"
        ) as pause:
            while True:
                try:
                    job = self.snapshot().job(job_id) or self._look_for(job_id)
                    if job is not None:
                        return job
                    trouble = ""
                    if not self.is_recorded:
                        unanswered.restart()
                except HistoryUnavailable as error:
                    trouble = f" Last error: {error}"
                if stop():
                    raise HistoryUnavailable(f"stopped while waiting for DDL job {job_id} in the history at {self._where}.{trouble}")
                if unanswered.over and (trouble or self.is_recorded):
                    raise HistoryUnavailable(
                        f"the binlog of DDL job {job_id} was read, but the history at {self._where} did not show the job within {self.timeout:g} s. "
                        f"Check that the history and the Pumps are of the same cluster.{trouble}"
                    )
                pause()

    @contextlib.contextmanager
    def waits(self, what: str) -> Iterator[Callable[[], None]]:
        """Show, and log at intervals, that the block waits for ``what``. The block calls the function that it gets between two requests."""
        pace, told = Retries(_BACKOFF, math.inf, sleep=self.pause), Retries(_BACKOFF, _TELL_SECONDS)

        def pause() -> None:
            pace.pause()
            if pace.elapsed >= _SHOW_SECONDS:
                self.waiting_for = what
            if told.over:
                _log.warning("waiting for %.0f s for %s", pace.elapsed, what)
                told.restart()

        try:
            yield pause
        finally:
            self.waiting_for = ""

    def wait_for_unfinished(
        self, versions: Mapping[int, int], checked: dict[int, int], keeps: Callable[[TableAt], bool] = lambda table: True
    ) -> None:
        """Wait for DDLs that have changed rows of a table, but are not in the history yet (``TableNow``). There is no limit while
        a status port answers.

        Args:
            versions: the highest schema version of rows, by table id.
            checked: by table id, the schema version up to which no such DDL exists; the call raises these versions.
            keeps: whether rows of a table matter; a table whose rows do not matter is not waited for.

        If the history has reached the rows' version, the version most likely comes from a DDL of another table. Then the wait for a status port
        ends after ``_UNTOLD_SECONDS``, and the log says that the state of the table is not known.

        Raises:
            HistoryUnavailable: no status port answered for ``timeout`` seconds, or no TiDB server has reached the rows' version,
                which is above the history's.
        """
        if self.is_recorded:
            return
        for table_id, version in versions.items():
            if version <= self.snapshot().newest_version and time.monotonic() < self._untold_until:
                continue
            known = self._known(table_id)
            if known is not None and version > max(known.version, checked.get(table_id, 0)) and keeps(known):
                self._wait_for_unfinished(table_id, version, checked)

    def _wait_for_unfinished(self, table_id: int, version: int, checked: dict[int, int]) -> None:
        unanswered, untold = Retries(_BACKOFF, self.timeout), Retries(_BACKOFF, min(self.timeout, _UNTOLD_SECONDS))
        known, tell = self._known(table_id), _Telling()
        name = f"{known.schema}.{known.name}" if known is not None else f"table id {table_id}"
        with self.waits(
            f"a DDL of {name} that the next rows need: the DDL history at {self._where} does not show the DDL yet. The DDL may wait for an open transaction "
            "at the upstream (see ADMIN SHOW DDL JOBS)"
        ) as pause:
            while known is not None and version > known.version:
                try:
                    now = self.table_now(table_id)
                    if now is not None and now.info is None:
                        # It is dropped, so every DDL before that has ended, and is in the history.
                        self.refresh()
                    if now is None or now.info is None:
                        checked[table_id] = version
                        return
                    if now.version >= version:
                        if not now.is_ahead_of(known.info):
                            checked[table_id] = now.version
                            return
                        unanswered.restart()
                        untold.restart()
                    elif version <= self.snapshot().newest_version and untold.over:
                        return self._go_on_untold(
                            name, version, f"the TiDB server at {self._answered} still has schema version {now.version}"
                        )
                    elif unanswered.over:
                        raise HistoryUnavailable(
                            f"rows of {name} have schema version {version}, but after {self.timeout:g} s the TiDB server at {self._answered} still has schema version "
                            f"{now.version}: check that this TiDB server is of the same cluster as the Pumps"
                        )
                    self.refresh(overtaken=True)
                    known = self._known(table_id)
                except HistoryUnavailable as error:
                    if version <= self.snapshot().newest_version and untold.over:
                        return self._go_on_untold(name, version, str(error))
                    if unanswered.over:
                        raise
                    tell(f"TiDB's status port: {error}")
                pause()

    def _known(self, table_id: int) -> TableAt | None:
        history = self.snapshot()
        return history.table_at(table_id, history.newest_version)

    def _go_on_untold(self, name: str, version: int, why: str) -> None:
        self._untold_until = time.monotonic() + _UNTOLD_SECONDS
        _log.warning(
            "rows of %s with schema version %d are read as the DDL history shows the table: whether a running DDL has changed the table is not known: %s",
            name,
            version,
            why,
        )

    def table_now(self, table_id: int) -> TableNow | None:
        """A table as a TiDB server has it now. None: the history is recorded, or the port is not a TiDB's.

        Raises:
            HistoryUnavailable: no status port answers.
        """
        if self.is_recorded:
            return None
        failures = []
        for url in sorted(self._known_urls(), key=lambda url: url != self._answered):
            try:
                answer = fetch(f"{url}/db-table/{table_id}", _REQUEST_TIMEOUT, tls=self._tls)
                if answer.ok:
                    return TableNow.from_json(json.loads(answer.body))
                if _NO_SUCH_TABLE in answer.body:
                    return TableNow(0, None)
            except FAILURES as error:
                failures.append(f"cannot read {url}/db-table/{table_id}: {error}.")
                continue
            except (ValueError, Corruption):
                _log.debug("%s/db-table/%d answers no table: %r", url, table_id, answer.body[:200])
            return None
        raise HistoryUnavailable(" ".join([*failures, "Check that TiDB's status port is up."]))

    @property
    def _where(self) -> str:
        if self._urls is None:
            return str(self._path)
        try:
            return ",".join(self._urls())
        except PumpUnavailable:
            return self._answered or "TiDB's status ports"

    def _read_all(self) -> SchemaHistory:
        """From the cache if it is valid, the rest from the status port."""
        with _no_collection():
            cached = self._cache.load() if self._cache is not None else []
        fits = bool(cached) and self._fits(cached)
        known = {job.id: job for job in cached} if fits else {}
        self._reader.know(known.values())
        with _no_collection():
            new = list(self._pages(max(known, default=0) - _OVERLAP, _PAGE, known))
            history = SchemaHistory.of((known | {job.id: job for job in new}).values())
        self._first = self._highest = max(history.jobs, default=0)
        if self._cache is not None and (len(new) > _CACHE_AGAIN or (cached and not fits)):
            self._cache.store(sorted(history.jobs.values(), key=lambda job: job.id))
        return history

    def _fits(self, cached: list[Job]) -> bool:
        """Whether the cached jobs match the status port's, checked around the oldest and the newest one."""
        for start in (cached[0].id, cached[-1].id):
            page = {job.id: job for job in self._reader.read(self._get(f"?start_job_id={start}&limit={_FIRST_PAGE}"))}
            lowest = min(page, default=start)
            if any(page.get(job.id) != job for job in cached if lowest <= job.id <= start) or start not in page:
                _log.warning(
                    "the cached DDL history differs from the history at %s: the cache is discarded and the whole history is read",
                    self._where,
                )
                return False
        return True

    def _look_for(self, job_id: int) -> Job | None:
        """Reads at least down to the newest known job, or jobs between it and the pages would be missed."""
        if self.is_recorded:
            return self._reread_file().job(job_id)
        self.snapshot()
        return self._fetch_down_to(min(job_id, self._highest), _FIRST_PAGE).job(job_id)

    def _fetch_down_to(self, job_id: int, page: int) -> SchemaHistory:
        """Read new jobs until a page reaches ``job_id``."""
        history = self.snapshot()
        found = sorted(map(self._effect_of, self._pages(job_id, page, history.jobs)), key=lambda job: job.id)
        self._history = history.merged(found)
        self._highest = max(self._highest, found[-1].id if found else 0)
        return self._history

    def _effect_of(self, job: Job) -> Job:
        return self._snapshot.without_effect(job) if self._snapshot is not None else job

    def _pages(self, job_id: int, limit: int, known: Mapping[int, Job]) -> Iterator[Job]:
        """The jobs that are not ``known``, newest first, in pages that grow from ``limit``, until a page reaches ``job_id``."""
        query, before = f"?limit={limit}", 1 << 62
        while True:
            page = self._get(query)
            ids = [int(job["id"]) for job in page]
            if ids and max(ids) >= before:
                raise HistoryUnavailable(f"{self._where}/ddl/history does not support start_job_id: TiDB 5.4 or later is needed")
            # a finished job does not change
            yield from self._reader.read(job for job, i in zip(page, ids, strict=True) if i not in known or not _same(known[i], job))
            before = min(ids, default=0)
            if len(page) < limit or before <= max(job_id, 1):
                return
            limit = min(limit * 4, _PAGE)
            query = f"?start_job_id={before - 1}&limit={limit}"

    def _get(self, query: str) -> list[dict[str, Any]]:
        """The answer of the first address that responds; later requests try that address first."""
        failures = []
        for url in sorted(self._known_urls(), key=lambda url: url != self._answered):
            try:
                answer = self._get_from(url, query)
            except HistoryUnavailable as error:
                failures.append(str(error))
                continue
            self._answered = url
            return answer
        raise HistoryUnavailable(" ".join(failures))

    def _known_urls(self) -> Sequence[str]:
        assert self._urls is not None, "a recorded history is not asked"
        try:
            return self._urls()
        except PumpUnavailable as error:
            raise HistoryUnavailable(f"cannot read the DDL history, because no status port of TiDB is known: {error}") from error

    def _get_from(self, address: str, query: str) -> list[dict[str, Any]]:
        url = f"{address}/ddl/history{query}"
        try:
            answer = fetch(url, _REQUEST_TIMEOUT, tls=self._tls)
            if not answer.ok:
                said = answer.body[:200].decode("utf-8", "replace").strip()
                raise HistoryUnavailable(f"{url} answered {answer.status}: {said}. Check that it is a status port of TiDB.")
            return _jobs(json.loads(answer.body), url)
        except (*FAILURES, ValueError) as error:
            raise HistoryUnavailable(f"cannot read {url}: {error}. Check that it is a status port of TiDB and that it is up.") from error

    def _reread_file(self) -> SchemaHistory:
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if self._history is None or stamp != self._stamp:
                data = self._path.read_bytes()
                text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
                self._history = SchemaHistory.of(self._reader.read(_jobs(json.loads(text), str(self._path))))
                self._stamp = stamp
        except (OSError, EOFError, zlib.error, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise HistoryUnavailable(f"cannot read the recorded DDL history {self._path}: {error}. Check spark.tidb-status.") from error
        return self._history


class _Telling:
    """Logs what is waited for: at once, then every ``_TELL_SECONDS``."""

    def __init__(self) -> None:
        self._told: Retries | None = None

    def __call__(self, what: str) -> None:
        if self._told is None or self._told.over:
            self._told = Retries(_POLL, _TELL_SECONDS)
            _log.warning("waiting for %s", what)


def names_file(where: str) -> bool:
    """Whether ``where`` is the path of a recorded history, and not URLs of status ports."""
    return not where.startswith(("http://", "https://"))


def _listed(where: str) -> Callable[[], Sequence[str]] | None:
    """The URLs in ``where``; None if it is a path."""
    if names_file(where):
        return None
    urls = tuple(part.strip().rstrip("/") for part in where.split(",") if part.strip())
    return lambda: urls


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Suspends garbage collection while millions of long-lived objects are created: scanning them costs more than creating them."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _same(known: Job, job: Mapping[str, Any]) -> bool:
    """Whether a job in JSON is unchanged since it was read."""
    binlog = job.get("binlog") or {}
    return (known.version, known.state, known.finished_ts) == (
        binlog.get("SchemaVersion") or 0,
        job.get("state"),
        binlog.get("FinishedTS") or 0,
    )


def _jobs(parsed: Any, where: str) -> list[dict[str, Any]]:
    """The answer as a list; TiDB sends ``null`` for an empty one."""
    if parsed is None:
        return []
    if not isinstance(parsed, list):
        raise HistoryUnavailable(f"{where}: expected a list of DDL jobs, got {type(parsed).__name__}. Check that it is a DDL history.")
    return parsed
