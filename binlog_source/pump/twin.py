"""Refuses to start a Pump if another Pump runs under the same node id, for example on a copy of its machine. HTTP shell.

Two Pumps with one id overwrite each other's entry in the registry. Readers then jump between two logs, and fail with a message about a log
that was restored from a backup.

Promises: a Pump is refused only if a Pump with this id answers at the registered address. After a crash nobody answers there. At the former
address of a Pump that has moved, a Pump with another id may answer.
"""

from collections.abc import Iterable

from pyspark_tidb_binlog.binlog_source.cluster.pump_identity import require_pump
from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeStatus
from pyspark_tidb_binlog.schemas.errors import NotUsableYet, PumpUnavailable
from pyspark_tidb_binlog.schemas.tls import TlsSettings


def require_no_twin(known: Iterable[NodeStatus], node_id: str, address: str, tls: TlsSettings | None) -> None:
    """Refuse to serve at ``address`` as ``node_id`` if a Pump with that id is registered at another address, and answers there.

    Raises:
        NotUsableYet: there is such a Pump; it may be about to end.
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
