"""A bare grpcio server that answers WriteBinlog and stores nothing, for comparison in ``bench_pump``.

    python -m benchmarks.bare_grpc [threads | aio]

Prints ``serving HOST:PORT``.
"""

import asyncio
import sys
import threading
from concurrent import futures

import grpc

_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0))


def serve_threads() -> None:
    """The usual server: a pool of threads."""
    server = grpc.server(futures.ThreadPoolExecutor(96), options=_OPTIONS)
    answer = grpc.unary_unary_rpc_method_handler(lambda request, context: b"")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("binlog.Pump", {"WriteBinlog": answer}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"serving 127.0.0.1:{port}", flush=True)
    threading.Event().wait()


async def serve_aio() -> None:
    """The asyncio server."""

    async def answer(request: bytes, context: object) -> bytes:
        return b""

    server = grpc.aio.server(options=_OPTIONS)
    handler = grpc.unary_unary_rpc_method_handler(answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("binlog.Pump", {"WriteBinlog": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"serving 127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    if sys.argv[1:] == ["aio"]:
        asyncio.run(serve_aio())
    else:
        serve_threads()
