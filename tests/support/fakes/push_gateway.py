"""A stand-in for Prometheus' push gateway: takes what is put, and answers as it is told."""

import queue
from http import HTTPStatus

from pyspark_tidb_binlog.binlog_source.rpc.calls import Methods
from pyspark_tidb_binlog.binlog_source.rpc.http1 import HttpRequest, HttpResponse
from pyspark_tidb_binlog.binlog_source.rpc.rpc_server import RpcServer


class PushGateway:
    """Serves from the beginning; ``received`` has every request."""

    def __init__(self) -> None:
        self.status = HTTPStatus.ACCEPTED
        self.received: queue.Queue[HttpRequest] = queue.Queue()
        self.server = RpcServer("gateway").bind("127.0.0.1:0").serve(Methods(http=self._answer))

    @property
    def address(self) -> str:
        """Its ``host:port``."""
        return f"127.0.0.1:{self.server.port}"

    def _answer(self, request: HttpRequest) -> HttpResponse:
        self.received.put(request)
        return HttpResponse(self.status, b"no room" if self.status >= HTTPStatus.BAD_REQUEST else b"")
