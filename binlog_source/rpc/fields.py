"""Validation of a request's fields (RFC 9113, sections 8.2 and 8.3): names, values, pseudo-header fields.

Promises: pure. A fault is a description of the violation, and the stream is then reset. "" means valid.
"""

import re
from collections.abc import Mapping, Sequence

METHOD, SCHEME, PATH, AUTHORITY = b":method", b":scheme", b":path", b":authority"
_PSEUDO = frozenset((METHOD, SCHEME, PATH, AUTHORITY))
_REQUIRED = (METHOD, SCHEME, PATH)
_OF_A_CONNECTION = frozenset((b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"))
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch
_UNFIT = re.compile(rb"[\0\r\n]|\A[ \t]|[ \t]\Z").search
_DIGITS = re.compile(rb"[0-9]{1,18}").fullmatch


def request_fault(fields: Sequence[tuple[bytes, bytes]]) -> str:
    """The first fault in a request's fields, given in the order received."""
    pseudo: dict[bytes, bytes] = {}
    regular = False
    for name, value in fields:
        if name[:1] == b":":
            if regular:
                return f"pseudo-header field {name!r} after a regular field"
            if name in pseudo or name not in _PSEUDO:
                return f"pseudo-header field {name!r} {'twice' if name in pseudo else 'in a request'}"
            pseudo[name] = value
            if _UNFIT(value):
                return f"field {name!r} with the invalid value {value[:50]!r}"
        else:
            regular = True
            fault = _regular_fault(name, value)
            if fault:
                return fault
    return _pseudo_fault(pseudo)


def _regular_fault(name: bytes, value: bytes) -> str:
    if _NAME(name) is None:
        return f"invalid field name {name[:50]!r}"
    if _UNFIT(value):
        return f"field {name!r} with the invalid value {value[:50]!r}"
    if name in _OF_A_CONNECTION or (name == b"te" and value != b"trailers"):
        return f"connection-specific field {name!r}"
    if name == b"content-length" and _DIGITS(value) is None:
        return f"invalid content-length {value[:50]!r}"
    return ""


def _pseudo_fault(pseudo: Mapping[bytes, bytes]) -> str:
    if pseudo.get(METHOD) == b"CONNECT":
        return "" if AUTHORITY in pseudo and SCHEME not in pseudo and PATH not in pseudo else "CONNECT must have :authority only"
    for name in _REQUIRED:
        if not pseudo.get(name):
            return f"pseudo-header field {name!r} is missing"
    return ""


def trailers_fault(fields: Mapping[bytes, bytes]) -> str:
    """The first fault in a request's trailers."""
    for name, value in fields.items():
        if name[:1] == b":":
            return f"pseudo-header field {name!r} in trailers"
        fault = _regular_fault(name, value)
        if fault:
            return fault
    return ""
