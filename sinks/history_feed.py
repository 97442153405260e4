"""Reads the DDL history: over HTTP from a status port (``GET /ddl/history``), or from a recorded ``.json`` or ``.json.gz`` file.

Promises: everything is read once; after that only what is new (pages of ``?limit=N&start_job_id=S``, newest first). A job shows up
there shortly after its binlog commits, so ``wait_for_job`` polls. Failures are ``HistoryUnavailable`` with the address and what to do.
"""

import gzip
import json
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from schemas.errors import HistoryUnavailable
from schemas.history import Job, JobReader, SchemaHistory

_PAGE = 256
_OVERLAP = 256
"""Job ids that are read again at each refresh: a job with a lower id may finish after one with a higher id."""
_REQUEST_TIMEOUT = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5


class HistoryFeed:
    """The DDL history behind one address."""

    def __init__(self, url: str) -> None:
        """``url``: ``http://host:port`` of a status port, or the path of a recorded history."""
        self._url = url.rstrip("/") if url.startswith(("http://", "https://")) else ""
        self._path = Path(url)
        self._reader = JobReader()
        self._history: SchemaHistory | None = None
        self._stamp: tuple[int, int] = (0, 0)

    @property
    def is_recorded(self) -> bool:
        """True for a file: what it lacks will not come."""
        return not self._url

    def snapshot(self) -> SchemaHistory:
        """What is known so far; the first call reads everything."""
        return self._history if self._history is not None else self.refresh()

    def refresh(self) -> SchemaHistory:
        """Ask for what is new."""
        if not self._url:
            return self._reread_file()
        if self._history is None:
            self._history = SchemaHistory.of(self._reader.read(self._get("")))
            return self._history
        newest = max(self._history.jobs, default=0)
        return self._fetch_down_to(newest - _OVERLAP)

    def wait_for_job(self, job_id: int, timeout: float, stop: Callable[[], bool] = lambda: False) -> Job:
        """The job ``job_id``, polled for until it is there.

        Raises:
            HistoryUnavailable: not there after ``timeout`` seconds, or ``stop()`` said so; the last trouble is in the text.
        """
        deadline = time.monotonic() + timeout
        pause = _FIRST_PAUSE
        trouble = ""
        while True:
            try:
                job = self.snapshot().job(job_id) or self._look_for(job_id)
                if job is not None:
                    return job
                trouble = ""
            except HistoryUnavailable as error:
                trouble = f" Last trouble: {error}"
            if stop():
                raise HistoryUnavailable(f"stopped while waiting for DDL job {job_id} in the history at {self._where}.{trouble}")
            if time.monotonic() >= deadline:
                raise HistoryUnavailable(
                    f"DDL job {job_id} did not appear in the history at {self._where} within {timeout:g} s, though its binlog is there. "
                    f"Check that ddl-history points to the same cluster as the Pumps.{trouble}"
                )
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(pause * 2, _LONGEST_PAUSE)

    @property
    def _where(self) -> str:
        return self._url or str(self._path)

    def _look_for(self, job_id: int) -> Job | None:
        """Down to the newest job known as well, or a hole would stay between the pages and it."""
        if not self._url:
            return self._reread_file().job(job_id)
        newest = max(self.snapshot().jobs, default=0)
        return self._fetch_down_to(min(job_id, newest)).job(job_id)

    def _fetch_down_to(self, job_id: int) -> SchemaHistory:
        """Read pages, newest first, until one reaches ``job_id``."""
        found: list[Job] = []
        query = f"?limit={_PAGE}"
        while True:
            page = self._reader.read(self._get(query))
            found.extend(page)
            lowest = min((j.id for j in page), default=0)
            if len(page) < _PAGE or lowest <= max(job_id, 1):
                break
            query = f"?start_job_id={lowest - 1}&limit={_PAGE}"
        self._history = self.snapshot().merged(found)
        return self._history

    def _get(self, query: str) -> list[dict[str, Any]]:
        url = f"{self._url}/ddl/history{query}"
        try:
            with urllib.request.urlopen(url, timeout=_REQUEST_TIMEOUT) as answer:
                return _jobs(json.load(answer), url)
        except urllib.error.HTTPError as error:
            said = error.read(200).decode("utf-8", "replace").strip()
            error.close()
            raise HistoryUnavailable(f"{url} answered {error.code}: {said}. Check ddl-history.") from error
        except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise HistoryUnavailable(f"{url} cannot be read: {error}. Check ddl-history and that the status port is up.") from error

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
            raise HistoryUnavailable(f"the recorded DDL history {self._path} cannot be read: {error}") from error
        return self._history


def _jobs(parsed: Any, where: str) -> list[dict[str, Any]]:
    """The answer as a list; TiDB writes ``null`` for an empty one."""
    if parsed is None:
        return []
    if not isinstance(parsed, list):
        raise HistoryUnavailable(f"{where} is no list of DDL jobs but {type(parsed).__name__}. Check ddl-history.")
    return parsed
