"""Whether another Pump runs under this one's node id, as on a copy of its machine. HTTP shell.

Two Pumps with one id write over each other's entry in the registry; readers go from one log to the other and end with a message about a log
that was restored from a backup.

Promises: a Pump is refused only if something answers at the registered address, and with this id; after a crash nobody does, and at the
former address of a Pump that has moved there may be a Pump of another id.
"""

from collections.abc import Iterable

from pyspark_tidb_binlog.binlog_source.cluster.pump_identity import require_pump
from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeStatus
from pyspark_tidb_binlog.schemas.errors import NotUsableYet, PumpUnavailable
from pyspark_tidb_binlog.schemas.tls import TlsSettings


def require_no_twin(known: Iterable[NodeStatus], node_id: str, address: str, tls: TlsSettings | None) -> None:
    """Refuse to serve at ``address`` as ``node_id`` beside a Pump that is registered as the same one, at another address, and answers there.

    Raises:
        NotUsableYet: there is one; it may be about to end.
    """
    for status in known:
        if status.node_id == node_id and status.host != address and _answers_as(node_id, status.host, tls):
            raise NotUsableYet(
                f"Pump {node_id} already runs at {status.host}, and this Pump at {address} has the same node id. The machine or its data-dir may be a copy. "
                f"Give a new Pump an empty data-dir and its own node-id. If this Pump replaces the other Pump, stop the Pump at {status.host} first"
            )


def _answers_as(node_id: str, address: str, tls: TlsSettings | None) -> bool:
    try:
        require_pump(node_id, address, tls)
    except PumpUnavailable:
        return False
    return True
