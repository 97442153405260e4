"""The events that an HTTP/2 connection returns: whole calls, and calls that their client ended."""

from collections.abc import Mapping
from typing import NamedTuple


class Call(NamedTuple):
    """A complete request."""

    stream_id: int
    headers: Mapping[bytes, bytes]
    body: bytes
    too_large: bool = False
    """The body is longer than ``max_request``: all but its first bytes was discarded, and its rest will be."""


class Cancelled(NamedTuple):
    """The client cancelled the call, or violated HTTP/2 on its stream."""

    stream_id: int


Event = Call | Cancelled
