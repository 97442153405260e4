"""Notifies the Drainers that this Pump is about to serve (pump.md 2.1, step 4). gRPC shell.

Promises: returns only when every online Drainer has answered ``Notify``; else ``PumpUnavailable`` names those that did not. A Drainer
answers once it has refreshed its list of Pumps, so none can advance past a commit_ts that this Pump will store.
"""

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import grpc

from pyspark_tidb_binlog.binlog_source.cluster.channels import open_channel, reason
from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeState, NodeStatus
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import NOTIFY
from pyspark_tidb_binlog.schemas.backoff import Backoff
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from pyspark_tidb_binlog.schemas.tls import TlsSettings

OVERALL = 10.0
"""Seconds for all Drainers together."""
_ATTEMPTS = 4
_BACKOFF = Backoff(1.0, 4.0)


def notify(drainers: Iterable[NodeStatus], seconds: float = OVERALL, tls: TlsSettings | None = None) -> None:
    """Notify every online Drainer, all concurrently; ``tls``: the cluster's."""
    online = [drainer for drainer in drainers if drainer.state is NodeState.ONLINE]
    if not online:
        return
    deadline = time.monotonic() + seconds
    with ThreadPoolExecutor(len(online)) as pool:
        failures = [failure for failure in pool.map(lambda drainer: _notify(drainer, deadline, tls), online) if failure]
    if failures:
        raise PumpUnavailable(
            f"fail to notify all living drainer: {'; '.join(failures)}; start these Drainers, or set their state to offline, and start this Pump again"
        )


def _notify(drainer: NodeStatus, deadline: float, tls: TlsSettings | None) -> str:
    """Why the Drainer was not notified; "" if it was."""
    failure = "no time was left"
    with open_channel(drainer.host, tls) as channel:
        call = channel.unary_unary(NOTIFY, request_serializer=bytes, response_deserializer=bytes)
        for attempt in range(_ATTEMPTS):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            try:
                call(b"", timeout=left, wait_for_ready=True)
                return ""
            except grpc.RpcError as error:
                failure = reason(error)
            if attempt + 1 < _ATTEMPTS:
                time.sleep(max(0.0, min(_BACKOFF.pause(attempt), deadline - time.monotonic())))
    return f"Drainer {drainer.node_id} at {drainer.host}: {failure}"
