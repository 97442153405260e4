"""One open pull of a Pump's log (``Pull``), the channels to Pumps, and what a pull's end means. gRPC shell.

After a host crashed or was cut off, a call to it still has an open connection. So after a call that times out, the next call uses a new
connection (``renew``). HTTP/2 PINGs are not used: a real Pump's server treats more than one in five minutes as an attack. Each error names
Pump and ts. Channels are kept for the life of the process.
"""

import sys
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeAlias

import grpc
import grpc.experimental

from pyspark_tidb_binlog.binlog_source.cluster.channels import open_channel, reason
from pyspark_tidb_binlog.binlog_source.cluster.discovery import Waiting, log_waiting
from pyspark_tidb_binlog.binlog_source.cluster.pump_pages import ANSWER_SECONDS, require_pump
from pyspark_tidb_binlog.binlog_source.source.gc_bound import gc_ts_of, is_recent
from pyspark_tidb_binlog.binlog_source.wire.damage import Damage, damage_in, first_readable, silent_text
from pyspark_tidb_binlog.binlog_source.wire.fingerprint import LogFingerprint
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import (
    BATCH_KEY,
    DELIVERY_KEY,
    END_KEY,
    GC_TS_KEY,
    KNOWN_KEY,
    PIECE_KEY,
    PULL_BINLOGS,
    PUMP_KEY,
    SEEN_KEY,
    TIP,
    WRITE_BINLOG_BATCH,
    Position,
)
from pyspark_tidb_binlog.schemas.backoff import Retries, steady
from pyspark_tidb_binlog.schemas.errors import ConfigError, DamagedLog, PumpUnavailable
from pyspark_tidb_binlog.schemas.events import Delivery, as_time
from pyspark_tidb_binlog.schemas.pieces import PIECE_BYTES
from pyspark_tidb_binlog.schemas.proto import pump_pb2
from pyspark_tidb_binlog.schemas.tls import TlsSettings, is_refused

_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1000),
            ("grpc.use_local_subchannel_pool", 1))  # fmt: skip
_ONE_THREAD = ((grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1),)
"""Whoever takes a stream's messages also receives them: 7 microseconds a message, where grpcio's own thread and the handing over need 33."""
_POLL = steady(1.0)
BARE_ENDS = 8
"""A real Pump that ends this many pulls in a row with OK and no message cannot read its next record; one that shuts down does so once."""
FAR_FUTURE = (1 << 62) - 1
"""A ts beyond every binlog."""
_OTHER_CLUSTER = "cluster ID are mismatch"
"""A Pump's words, ours or a real one's."""
_PROBE_SECONDS = 5.0
_ASK_SECONDS = 3.0
_Options: TypeAlias = tuple[tuple[str, int], ...]
_channels: dict[tuple[str, TlsSettings | None, _Options], grpc.Channel] = {}
_channels_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One Pump to call: id, ``host:port``, and the cluster id that it checks. Picklable."""

    pump: str
    address: str
    cluster_id: int
    tls: TlsSettings | None = None
    gzip: bool = False
    """Whether it is asked to compress what is pulled."""
    by_address: bool = False
    """Whether the settings list the Pump by its address: any Pump that answers there is the right one."""


def require_itself(endpoint: Endpoint, timeout: float = ANSWER_SECONDS) -> None:
    """Check that the Pump at the address is the endpoint's. A Pump that is listed by its address always is. ``timeout``: see ``require_pump``.

    Raises:
        PumpUnavailable: no Pump answers, or another Pump.
    """
    if not endpoint.by_address:
        require_pump(endpoint.pump, endpoint.address, endpoint.tls, timeout)


def stays(endpoint: Endpoint) -> Endpoint:
    """``Find`` for a Pump whose address never changes."""
    return endpoint


@dataclass(frozen=True, slots=True)
class PullMetadata:
    """A Pump's initial metadata. ``delivery`` is empty for a real Pump, which sends none of this."""

    delivery: str
    gc_ts: int
    pump: str
    """Its node id."""
    seen: str = ""
    """Whether its log contains what the reader has seen, ``yes`` or ``no``; empty: the Pump was not asked, or does not support this."""
    end: Position | None = None
    """Where its log ends."""

    def require(self, endpoint: Endpoint) -> None:
        """Refuse the answer of another Pump: addresses are reused, and its promises do not hold for the Pump that was called.

        Raises:
            PumpUnavailable: another Pump answers there.
        """
        if not self.pump:
            # a real one, which names itself on another page only
            require_itself(endpoint)
        elif self.pump != endpoint.pump and not endpoint.by_address:
            raise PumpUnavailable(f"{endpoint.address} is the address of Pump {self.pump}, not {endpoint.pump}")


class Pull:
    """One PullBinlogs call: an iterator of response bytes. ``metadata()`` blocks until the Pump has answered.

    For one thread, except that another one may ``cancel`` while messages are waited for.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        delivery: str,
        start: Position,
        timeout: float | None = None,
        known: Collection[str] = (),
        seen: LogFingerprint | None = None,
    ) -> None:
        """``known``: the damaged places already recorded. ``seen``: what was read of the log."""
        self._endpoint = endpoint
        self._metadata: PullMetadata | None = None
        self._ahead: list[bytes] = []
        """The first message, if ``metadata`` had to wait for it."""
        self._iterated = False
        request = pump_pb2.PullBinlogReq(clusterID=endpoint.cluster_id)
        request.startFrom.suffix, request.startFrom.offset = start.suffix, start.offset
        # a call of one thread does not keep its channel, and grpcio cancels all calls of a channel that nobody has any more
        self._channel = _channel(endpoint, _ONE_THREAD)
        method = self._channel.unary_stream(
            PULL_BINLOGS, request_serializer=pump_pb2.PullBinlogReq.SerializeToString, response_deserializer=None
        )
        told = [(KNOWN_KEY, ",".join(sorted(known)))] if known else []
        if seen is not None:
            told.append((SEEN_KEY, seen.text))
        self._call: Any = method(
            request,
            timeout=timeout,
            metadata=((DELIVERY_KEY, delivery), (BATCH_KEY, "1"), (PIECE_KEY, str(PIECE_BYTES)), *told),
            compression=grpc.Compression.Gzip if endpoint.gzip else None,
        )

    def metadata(self) -> PullMetadata:
        """The Pump's initial metadata.

        Raises:
            grpc.RpcError: the call failed before the Pump answered.
            PumpUnavailable: another Pump answered.
        """
        if self._metadata is not None:
            return self._metadata
        # grpcio would hold the call's lock while it waits, so that nobody could cancel it
        while self._call._state.initial_metadata is None and self._call._state.code is None:
            self._call._consume_next_event()
        received = {key: str(value) for key, value in self._call.initial_metadata() or ()}
        if DELIVERY_KEY not in received and not self._iterated:
            # Of a real Pump, whose metadata comes with its first message, or of a call that failed: grpcio raises that there.
            self._ahead += islice(self._call, 1 - len(self._ahead))
        gc_ts = int(received.get(GC_TS_KEY, "0") or 0)
        end = _position_in(received.get(END_KEY, ""))
        metadata = PullMetadata(received.get(DELIVERY_KEY, ""), gc_ts, received.get(PUMP_KEY, ""), received.get(SEEN_KEY, ""), end)
        metadata.require(self._endpoint)
        self._metadata = metadata
        return metadata

    def __iter__(self) -> Iterator[bytes]:
        self._iterated = True
        return chain(self._ahead, self._call)

    def cancel(self) -> None:
        """End the call; from any thread."""
        self._call.cancel()

    def close(self) -> None:
        """End the call and free it; by the thread that reads it."""
        self.cancel()
        if isinstance(sys.exc_info()[1], KeyboardInterrupt | SystemExit):
            # A signal's handler may have raised it where the call waits for an event: grpcio has then freed what the next would be taken from.
            return
        # grpcio keeps 20 KB of a call of one thread for ever, unless that thread takes its last events
        while self._call._state.due:
            self._call._consume_next_event()


def _position_in(text: str) -> Position | None:
    suffix, colon, offset = text.partition(":")
    return Position(int(suffix), int(offset)) if colon and suffix.isdigit() and offset.isdigit() else None


def channel(endpoint: Endpoint) -> grpc.Channel:
    """The channel of this process to a Pump, for calls with one answer."""
    return _channel(endpoint, ())


def _channel(endpoint: Endpoint, options: _Options) -> grpc.Channel:
    key = endpoint.address, endpoint.tls, options
    with _channels_lock:
        if key not in _channels:
            _channels[key] = open_channel(endpoint.address, endpoint.tls, (*_OPTIONS, *options))
        return _channels[key]


def renew(address: str) -> None:
    """Make the next call to ``address`` use a new connection. Calls in progress keep theirs."""
    with _channels_lock:
        for key in [key for key in _channels if key[0] == address]:
            # grpcio closes a channel that nobody has any more
            del _channels[key]


def offers_raw(endpoint: Endpoint, patience: float, waiting: Waiting = log_waiting) -> bool:
    """Whether the Pump offers tip and raw delivery, as ours do. A real Pump does not know the method ``WriteBinlogBatch``.

    The question is a batch without binlogs, which a Pump answers at once. A real Pump answers a pull only when it has a message.

    Raises:
        PumpUnavailable: the Pump cannot be reached within ``patience`` seconds, or a certificate is refused.
    """
    retries = Retries(_POLL, patience)
    while True:
        ask = channel(endpoint).unary_unary(
            WRITE_BINLOG_BATCH,
            request_serializer=pump_pb2.WriteBinlogBatchReq.SerializeToString,
            response_deserializer=pump_pb2.WriteBinlogResp.FromString,
        )
        try:
            ask(pump_pb2.WriteBinlogBatchReq(clusterID=endpoint.cluster_id), timeout=_ASK_SECONDS)
            return _tells_tip(endpoint)
        except grpc.RpcError as error:
            failure = error
        require_cluster(failure, endpoint)
        if failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            renew(endpoint.address)
        if failure.code() is grpc.StatusCode.UNIMPLEMENTED:
            return False
        text = f"Pump {endpoint.pump} at {endpoint.address} did not say which delivery it offers: {reason(failure)}"
        if retries.over or is_refused(text):
            raise PumpUnavailable(text)
        waiting(text)
        retries.pause()


def _tells_tip(endpoint: Endpoint) -> bool:
    """Whether the Pump, which is ours, offers tip and raw delivery; it answers a pull at once.

    Raises:
        grpc.RpcError: the call failed.
        PumpUnavailable: another Pump answers there.
    """
    pull = Pull(endpoint, TIP, Position(0, FAR_FUTURE), timeout=_ASK_SECONDS)
    try:
        return pull.metadata().delivery == TIP
    finally:
        pull.close()


def kept_by_real(endpoint: Endpoint, after_ts: int, newest_ts: int = 0) -> int:
    """The gc ts of a real Pump; 0, without asking it, if nothing above ``after_ts`` can be gone. ``newest_ts``: as ``gc_bound.is_recent`` has it.

    Raises:
        PumpUnavailable: the Pump does not report it.
    """
    return (
        0
        if not after_ts or is_recent(after_ts, newest_ts)
        else gc_ts_of(endpoint.pump, endpoint.address, endpoint.tls, by_address=endpoint.by_address)
    )


def silent_damage(endpoint: Endpoint, after_ts: int, upto_ts: int) -> tuple[Damage, str]:
    """The damaged place at which a real Pump stops after ``after_ts``, and the message. Probes show from which ts on the Pump delivers.

    Raises:
        PumpUnavailable: the Pump ends every pull, whatever ts the pull starts from.
    """

    def readable(ts: int) -> bool:
        pull = Pull(endpoint, Delivery.SORTED, Position(0, ts), timeout=_PROBE_SECONDS)
        try:
            return next(iter(pull), None) is not None
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                # it waits for new binlogs, so it could read everything there is
                return True
            raise
        finally:
            pull.close()

    lost = first_readable(after_ts, upto_ts, readable)
    if lost is None:
        raise PumpUnavailable(f"Pump {endpoint.pump} at {endpoint.address} ends every pull without a message: see the Pump's own log")
    text = f"{silent_text(endpoint.pump, after_ts)}: the record at ts {lost} ({as_time(lost)}) is lost"
    return Damage(-1, lost, lost, lost - 1, lost), text


def require_cluster(error: grpc.RpcError, endpoint: Endpoint) -> None:
    """Fail if a listed Pump refuses the settings' cluster id. At a registered Pump's address a Pump of another cluster may come and go.

    Raises:
        ConfigError: the listed Pump refuses the id.
    """
    if endpoint.by_address and isinstance(error, grpc.Call) and _OTHER_CLUSTER in (error.details() or ""):
        raise ConfigError(
            f"Pump {endpoint.address} is of another cluster than spark.cluster-id names ({error.details()}): with a list of Pumps, set "
            "spark.cluster-id to the id in the logs of the Pumps and TiDB"
        )


def damage_of(error: grpc.RpcError, endpoint: Endpoint) -> Damage | None:
    """The damaged place at which a Pump ended a pull; None if it ended for another reason.

    Raises:
        DamagedLog: the Pump reports lost data, but not where.
        ConfigError: see ``require_cluster``.
    """
    require_cluster(error, endpoint)
    if not isinstance(error, grpc.Call) or error.code() is not grpc.StatusCode.DATA_LOSS:
        return None
    damage = damage_in(error.details() or "")
    if damage is None:
        raise DamagedLog(f"Pump {endpoint.pump} at {endpoint.address} reports lost binlogs: {error.details()}")
    return damage


def purged(gc_ts: int, after_ts: int) -> bool:
    """Whether binlogs above ``after_ts`` may be gone; ts 0 requests whatever is left."""
    return 0 < after_ts < gc_ts


def purge_text(pump: str, gc_ts: int, after_ts: int) -> str:
    """The message about a span that the Pump has collected."""
    return (
        f"Pump {pump} has collected binlogs that the stream still needs: wanted above ts {after_ts} ({as_time(after_ts)}), "
        f"oldest kept {gc_ts} ({as_time(gc_ts)})"
    )
