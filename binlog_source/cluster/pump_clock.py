"""The upstream's present time, as its Pumps report it. For a fixed list of Pumps, without a registry. HTTP shell.

A Pump's ``GET /status`` has it as ``CommitTS``: a fresh timestamp of PD (wire.md 8.1), or without a registry a timestamp above all in the
Pump's log. This machine's clock is not asked: a clock that is behind would name a time that binlogs have passed, and a clock that is ahead
a time that binlogs reach much later.

Promises: the result is above every commit_ts that the answering Pump had delivered before the question.
"""

import json
from collections.abc import Iterable

from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from pyspark_tidb_binlog.schemas.http_client import FAILURES, HttpConnection
from pyspark_tidb_binlog.schemas.tls import TlsSettings

_TIMEOUT = 5.0


def now_by_pumps(addresses: Iterable[str], tls: TlsSettings | None = None) -> int:
    """The greatest present time that the Pumps at ``addresses`` (``host:port``) report; one answer is enough. ``tls``: the cluster's.

    Raises:
        PumpUnavailable: no Pump reports a time.
    """
    told, silent = [], []
    for address in addresses:
        try:
            told.append(_now_by(address, tls))
        except PumpUnavailable as error:
            silent.append(str(error))
    if not told:
        raise PumpUnavailable(f"no Pump reports the upstream's time: {'; '.join(silent)}")
    return max(told)


def _now_by(address: str, tls: TlsSettings | None) -> int:
    page, code = f"{'https' if tls else 'http'}://{address}/status", "no answer"
    try:
        with HttpConnection.to(address, _TIMEOUT, tls=tls or False) as connection:
            answer = connection.request("GET", "/status")
            code = f"HTTP {answer.status}"
        found = json.loads(answer.text) if answer.ok else {}
        ts, trouble = int(found["CommitTS"]), found.get("ErrMsg") or "CommitTS is 0"
    except FAILURES as error:
        raise PumpUnavailable(f"{page} does not answer ({type(error).__name__}: {error})") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PumpUnavailable(f"{page} has no CommitTS ({code})") from error
    if ts <= 0:
        raise PumpUnavailable(f"{page}: {trouble}")
    return ts
