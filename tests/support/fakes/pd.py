"""A stand-in for PD: its members and timestamps, and a real etcd behind the same port, as in PD.

Promises: ``/pdpb.PD/GetMembers``, ``Tso`` and those about GC answer as PD's do (a leader for timestamps, the cluster id checked, the LAST of the
timestamps returned); every ``/etcdserverpb.*`` call goes to the etcd byte for byte, and its answers and errors come back as they are.
"""

from collections.abc import Iterable, Iterator
from concurrent import futures
from typing import Any

import grpc

from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle
from pyspark_tidb_binlog.schemas.proto import pd_pb2

_THREADS = 32


class FakePdMember:
    """One member of a ``FakePd``: a gRPC server with a port of its own, kept over restarts."""

    def __init__(self, pd: "FakePd", name: str) -> None:
        self._pd = pd
        self._server: grpc.Server | None = None
        self._streams: set[grpc.ServicerContext] = set()
        self.name = name
        self.address = "127.0.0.1:0"
        self.asked = 0
        """Requests for timestamps that it got."""

    @property
    def url(self) -> str:
        return f"{'http' if self._pd.credentials is None else 'https'}://{self.address}"

    def start(self) -> None:
        """Serve."""
        self._etcd = grpc.insecure_channel(self._pd.etcd, options=(("grpc.use_local_subchannel_pool", 1),))
        self._server = grpc.server(futures.ThreadPoolExecutor(_THREADS))
        own = {
            "GetMembers": grpc.unary_unary_rpc_method_handler(
                self._members, pd_pb2.GetMembersRequest.FromString, pd_pb2.GetMembersResponse.SerializeToString
            ),
            "GetGCSafePoint": grpc.unary_unary_rpc_method_handler(
                self._safe_point, pd_pb2.GetGCSafePointRequest.FromString, pd_pb2.GetGCSafePointResponse.SerializeToString
            ),
            "UpdateServiceGCSafePoint": grpc.unary_unary_rpc_method_handler(
                self._hold, pd_pb2.UpdateServiceGCSafePointRequest.FromString, pd_pb2.UpdateServiceGCSafePointResponse.SerializeToString
            ),
            "Tso": grpc.stream_stream_rpc_method_handler(self._tso, pd_pb2.TsoRequest.FromString, pd_pb2.TsoResponse.SerializeToString),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("pdpb.PD", own), _Forwarding(self._etcd)))
        secure = self._pd.credentials
        port = self._server.add_insecure_port(self.address) if secure is None else self._server.add_secure_port(self.address, secure)
        self.address = f"127.0.0.1:{port}"
        self._server.start()

    def stop(self) -> None:
        """Stop at once."""
        if self._server is not None:
            self._server.stop(grace=0).wait()
            self._etcd.close()
            self._server = None

    def break_streams(self) -> None:
        """End every stream of timestamps."""
        for context in tuple(self._streams):
            context.cancel()

    def _members(self, request: pd_pb2.GetMembersRequest, context: grpc.ServicerContext) -> pd_pb2.GetMembersResponse:
        members = [pd_pb2.Member(name=member.name, client_urls=[member.url]) for member in self._pd.members]
        leader = next((member for member in members if self._pd.leader is not None and member.name == self._pd.leader.name), None)
        return pd_pb2.GetMembersResponse(header=pd_pb2.ResponseHeader(cluster_id=self._pd.cluster_id), members=members, leader=leader)

    def _safe_point(self, request: pd_pb2.GetGCSafePointRequest, context: grpc.ServicerContext) -> pd_pb2.GetGCSafePointResponse:
        self._require_leader(request.header, context)
        return pd_pb2.GetGCSafePointResponse(header=pd_pb2.ResponseHeader(cluster_id=self._pd.cluster_id), safe_point=self._pd.safe_point)

    def _hold(
        self, request: pd_pb2.UpdateServiceGCSafePointRequest, context: grpc.ServicerContext
    ) -> pd_pb2.UpdateServiceGCSafePointResponse:
        """As PD: a safe point below the lowest of all services is not taken; a TTL of 0 or less removes the service."""
        self._require_leader(request.header, context)
        if not self._pd.bootstrapped:
            self._pd.holds.append((request.service_id.decode(), request.TTL, request.safe_point))
            error = pd_pb2.Error(type=2, message="cluster is not bootstrapped")
            return pd_pb2.UpdateServiceGCSafePointResponse(header=pd_pb2.ResponseHeader(cluster_id=self._pd.cluster_id, error=error))
        held, service = self._pd.held, request.service_id.decode()
        if request.TTL <= 0:
            held.pop(service, None)
        elif request.safe_point >= min((self._pd.safe_point, *held.values())):
            held[service] = request.safe_point
        self._pd.holds.append((service, request.TTL, request.safe_point))
        lowest = min((self._pd.safe_point, *held.values()))
        return pd_pb2.UpdateServiceGCSafePointResponse(header=pd_pb2.ResponseHeader(cluster_id=self._pd.cluster_id), min_safe_point=lowest)

    def _tso(self, requests: Iterable[pd_pb2.TsoRequest], context: grpc.ServicerContext) -> Iterator[pd_pb2.TsoResponse]:
        self._streams.add(context)
        try:
            for request in requests:
                self.asked += 1
                yield self._stamp(request, context)
        except grpc.RpcError:
            return  # broken on purpose, or the client has gone
        finally:
            self._streams.discard(context)

    def _require_leader(self, header: pd_pb2.RequestHeader, context: grpc.ServicerContext) -> None:
        if self._pd.leader is not self:
            context.abort(grpc.StatusCode.UNKNOWN, "[PD:server:ErrNotLeader]not leader")
        if header.cluster_id != self._pd.cluster_id:
            context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, f"mismatch cluster id, need {self._pd.cluster_id} but got {header.cluster_id}"
            )

    def _stamp(self, request: pd_pb2.TsoRequest, context: grpc.ServicerContext) -> pd_pb2.TsoResponse:
        self._require_leader(request.header, context)
        last = self._pd.oracle.next(request.count) + request.count - 1
        stamp = pd_pb2.Timestamp(physical=last >> 18, logical=last & ((1 << 18) - 1))
        return pd_pb2.TsoResponse(header=pd_pb2.ResponseHeader(cluster_id=self._pd.cluster_id), count=request.count, timestamp=stamp)


class FakePd:
    """A PD of ``size`` members before the etcd at ``etcd``; the first one leads. ``credentials``: it speaks TLS."""

    def __init__(self, etcd: str, cluster_id: int, size: int = 1, credentials: grpc.ServerCredentials | None = None) -> None:
        self.credentials = credentials
        self.etcd = etcd
        self.cluster_id = cluster_id
        self.oracle = Oracle()
        self.safe_point = 0
        """Also that of the service ``gc_worker``."""
        self.held: dict[str, int] = {}
        """Safe points of the other services."""
        self.holds: list[tuple[str, int, int]] = []
        """Every request for one: service, seconds, safe point."""
        self.bootstrapped = True
        """Whether a TiKV has joined; without one PD knows nothing about GC."""
        self.members = [FakePdMember(self, f"pd-{number}") for number in range(size)]
        self.leader: FakePdMember | None = self.members[0]

    @property
    def urls(self) -> str:
        return ",".join(member.url for member in self.members)

    def lead(self, member: FakePdMember | None) -> None:
        """Another leader, or none; whoever led ends its streams."""
        before, self.leader = self.leader, member
        if before is not None:
            before.break_streams()

    def start(self) -> "FakePd":
        for member in self.members:
            member.start()
        return self

    def stop(self) -> None:
        for member in self.members:
            member.stop()

    def __enter__(self) -> "FakePd":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Forwarding(grpc.GenericRpcHandler):
    """Every call to etcd, as bytes."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler | None:
        method: str = handler_call_details.method
        if not method.startswith("/etcdserverpb."):
            return None

        def forward(requests: Iterable[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            call: Any = self._channel.stream_stream(method, request_serializer=None, response_deserializer=None)(iter(requests))
            context.add_callback(call.cancel)
            try:
                yield from call
            except grpc.RpcError:
                context.abort(call.code(), call.details())

        # On the wire a unary call is a stream of one message.
        return grpc.stream_stream_rpc_method_handler(forward)
