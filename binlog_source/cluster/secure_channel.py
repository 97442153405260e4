"""gRPC channels with TLS: ``H2Client`` behind grpcio's interface.

Why not grpcio: with TLS it refuses servers without ALPN, which real Pumps are (wire.md 7). It cannot check ``cert-allowed-cn``, and it
reads a certificate only once. Calls and errors have grpcio's types (``grpc.Call``, ``grpc.RpcError``), so that callers do not differ.

Promises: those of ``H2Client``. Of grpcio's interface a ``TlsChannel`` has what this project uses: unary calls awaited or not, streams of
answers, streams of both, time-outs, metadata, ``wait_for_ready``, gzip, and ``ValueError`` on a closed channel.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from pyspark_tidb_binlog.binlog_source.rpc.client_call import ClientCall
from pyspark_tidb_binlog.binlog_source.rpc.grpc_message import CANCELLED, INTERNAL, OK, UNKNOWN
from pyspark_tidb_binlog.binlog_source.rpc.h2_client import H2Client

Coder = Callable[[Any], Any] | None
Metadata = Sequence[tuple[str, str]] | None
_STATUS = {int(code.value[0]): code for code in grpc.StatusCode}


class TlsChannel(grpc.Channel):
    """A channel with TLS."""

    def __init__(self, client: H2Client) -> None:
        self.client = client

    def unary_unary(self, method: str, request_serializer: Coder = None, response_deserializer: Coder = None, *_: Any) -> Any:
        """Calls with one answer."""
        return _UnaryMethod(self.client, method, request_serializer, response_deserializer)

    def unary_stream(self, method: str, request_serializer: Coder = None, response_deserializer: Coder = None, *_: Any) -> Any:
        """Calls with a stream of answers."""
        return _StreamMethod(self.client, method, request_serializer, response_deserializer)

    def stream_stream(self, method: str, request_serializer: Coder = None, response_deserializer: Coder = None, *_: Any) -> Any:
        """Calls with streams both ways."""
        return _BothWaysMethod(self.client, method, request_serializer, response_deserializer)

    def stream_unary(self, method: str, request_serializer: Coder = None, response_deserializer: Coder = None, *_: Any) -> Any:
        """Not offered: no service of a cluster has such a method."""
        raise NotImplementedError(method)

    def subscribe(self, callback: Any, try_to_connect: bool = False) -> None:
        """Not offered."""
        raise NotImplementedError

    def unsubscribe(self, callback: Any) -> None:
        """Not offered."""
        raise NotImplementedError

    def retire(self) -> None:
        """Close once the calls under way have ended."""
        self.client.retire()

    def close(self) -> None:
        """Close; calls under way end as cancelled."""
        self.client.close()

    def __enter__(self) -> "TlsChannel":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class _TlsMethod:
    def __init__(self, client: H2Client, method: str, encode: Coder, decode: Coder) -> None:
        self._client = client
        self._method = method
        self._encode = encode or _as_it_is
        self._decode = decode or _as_it_is

    def _start(
        self,
        timeout: float | None = None,
        metadata: Metadata = None,
        credentials: None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> "TlsCall":
        if self._client.closed:
            raise ValueError("Cannot invoke RPC on closed channel!")
        fields = [(name.encode(), value.encode()) for name, value in metadata or ()]
        gzip = compression is grpc.Compression.Gzip
        call = self._client.start(self._method, fields, timeout=timeout, waits=bool(wait_for_ready), compress=gzip)
        return TlsCall(call, self._decode, timeout)

    def _asked(self, request: Any, *arguments: Any, **options: Any) -> "TlsCall":
        message = self._encode(request)
        call = self._start(*arguments, **options)
        call.inner.send(message)
        call.inner.end_sending()
        return call


class _UnaryMethod(_TlsMethod):
    def __call__(self, request: Any, *arguments: Any, **options: Any) -> Any:
        return self.future(request, *arguments, **options).result()

    def future(self, request: Any, *arguments: Any, **options: Any) -> "TlsCall":
        return self._asked(request, *arguments, **options)


class _StreamMethod(_TlsMethod):
    def __call__(self, request: Any, *arguments: Any, **options: Any) -> "TlsCall":
        return self._asked(request, *arguments, **options)


class _BothWaysMethod(_TlsMethod):
    def __call__(self, requests: Iterator[Any], *arguments: Any, **options: Any) -> "TlsCall":
        call = self._start(*arguments, **options)
        threading.Thread(target=self._send, args=(call, requests), name=f"requests of {self._method}", daemon=True).start()
        return call

    def _send(self, call: "TlsCall", requests: Iterator[Any]) -> None:
        for request in requests:
            call.inner.send(self._encode(request))
        call.inner.end_sending()


class TlsCall(grpc.RpcError, grpc.Call):
    """One call, also as the error that it raises: what grpcio returns for a stream of answers, and for ``future``."""

    def __init__(self, inner: ClientCall, decode: Callable[[Any], Any], timeout: float | None) -> None:
        super().__init__()
        self.inner = inner
        self._decode = decode
        self._until = None if timeout is None else time.monotonic() + timeout
        self._cancelled_here = False

    def __str__(self) -> str:
        return f"{self.code().name}: {self.details()}"

    def __iter__(self) -> "TlsCall":
        return self

    def __next__(self) -> Any:
        message = self.inner.take()
        if message is not None:
            return self._decode(message)
        if self.inner.status == OK:
            raise StopIteration
        raise self

    def result(self, timeout: float | None = None) -> Any:
        """The answer of a unary call; raises the call itself if it failed, ``grpc.FutureTimeoutError`` if it goes on after ``timeout``."""
        if not self.inner.await_end(timeout):
            raise grpc.FutureTimeoutError
        if self._cancelled_here and self.inner.status == CANCELLED:
            raise grpc.FutureCancelledError
        if self.inner.status != OK:
            raise self
        message = self.inner.take()
        if message is None:
            self.inner.status, self.inner.text = INTERNAL, "the server answered without a message"
            raise self
        return self._decode(message)

    def initial_metadata(self) -> Any:
        """Waits for it; none if the call ended without."""
        return _texts(self.inner.await_headers())

    def trailing_metadata(self) -> Any:
        """Waits for the call's end."""
        self.inner.await_end()
        return _texts(self.inner.trailers)

    def code(self) -> grpc.StatusCode:
        """Waits for the call's end."""
        self.inner.await_end()
        return _STATUS.get(self.inner.status or OK, _STATUS[UNKNOWN])

    def details(self) -> str:
        """Waits for the call's end."""
        self.inner.await_end()
        return self.inner.text

    def done(self) -> bool:
        """Whether it has ended."""
        return self.inner.status is not None

    def is_active(self) -> bool:
        """Whether it goes on."""
        return not self.done()

    def cancelled(self) -> bool:
        """Whether it was cancelled from here."""
        return self._cancelled_here and self.inner.status == CANCELLED

    def time_remaining(self) -> Any:
        """Seconds until its time-out; None: it has none."""
        return None if self._until is None else max(0.0, self._until - time.monotonic())

    def cancel(self) -> bool:
        """End it, unless it has ended."""
        self._cancelled_here = True
        self.inner.cancel()
        return not self.done()

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Have ``callback`` called when it ends; False: it has ended."""
        return self.inner.on_end(callback)


def _as_it_is(message: Any) -> Any:
    return message


def _texts(fields: Sequence[tuple[bytes, bytes]]) -> tuple[tuple[str, str], ...]:
    return tuple((name.decode(errors="replace"), value.decode(errors="replace")) for name, value in fields)
