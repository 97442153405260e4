"""The JSON answers of a Pump and a Drainer to ``PUT /state`` and similar requests (wire.md 8)."""

from collections.abc import Mapping
from http import HTTPStatus

from pyspark_tidb_binlog.binlog_source.rpc.http1 import HttpResponse, json_answer

SUCCESS, NO_SUCH_NODE, OTHER_ERROR = 200, 2, 3
"""The codes in the answer; the HTTP status is always 200."""
_TYPE = "application/json; charset=UTF-8"


def node_answer(message: str, code: int, data: Mapping[str, int] | None = None) -> HttpResponse:
    """A real node's ``Response``: indented, without a line feed at its end."""
    body = json_answer({"message": message, "code": code, "data": data}, indent=2).body
    return HttpResponse(HTTPStatus.OK, body.rstrip(b"\n"), _TYPE)
