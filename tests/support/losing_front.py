"""A front of a Kafka broker that loses the broker's answer to one request to store messages, and the connection with it."""

import contextlib
import socket
import struct
import threading
from types import TracebackType
from typing import Self

_PRODUCE = 0
"""The first number of such a request."""


class LosingFront:
    """Carries bytes between clients and the broker. ``lose`` arms it once."""

    def __init__(self, port: int, behind: int) -> None:
        """``behind``: the port of the broker's listener, which tells its clients ``port``."""
        self._listener = socket.create_server(("127.0.0.1", port))
        self.address = f"127.0.0.1:{port}"
        self._behind = behind
        self.lose = False
        self.lost = 0
        """How many answers were lost."""

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # A close alone does not end an accept.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(("127.0.0.1", self._behind))
                for carry in (self._requests, self._answers):
                    threading.Thread(target=carry, args=(client, broker), daemon=True).start()

    def _requests(self, client: socket.socket, broker: socket.socket) -> None:
        with contextlib.suppress(OSError), client.makefile("rb") as stream:
            while head := stream.read(4):
                body = stream.read(struct.unpack(">i", head)[0])
                if self.lose and struct.unpack_from(">h", body)[0] == _PRODUCE:
                    self.lose = False
                    self._store(head + body)
                    break
                broker.sendall(head + body)
        for end in (client, broker):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _answers(self, client: socket.socket, broker: socket.socket) -> None:
        with client, broker, contextlib.suppress(OSError):
            while part := broker.recv(1 << 16):
                client.sendall(part)
            client.shutdown(socket.SHUT_RDWR)

    def _store(self, request: bytes) -> None:
        """The broker gets it by a connection of its own, and has answered when this returns."""
        with socket.create_connection(("127.0.0.1", self._behind)) as aside:
            aside.sendall(request)
            aside.recv(1)
        self.lost += 1
