"""Checks that several groups of settings share. Pure: each raises ``ValueError`` with the setting's name."""

from collections.abc import Callable

_LOG_LEVELS = ("debug", "info", "warn", "error", "fatal")


def require(condition: bool, message: str) -> None:
    """Raise ``ValueError(message)`` unless ``condition``."""
    if not condition:
        raise ValueError(message)


def require_logging(level: str, form: str) -> None:
    """``log-level`` and ``spark.log-format``."""
    require(level in _LOG_LEVELS, f"log-level: {level!r} is not debug, info, warn, error or fatal")
    require(form in ("text", "json"), f"spark.log-format: {form!r} is not text or json")


def require_addr(name: str, addr: str) -> None:
    """``host:port``; an empty host is any address of this machine."""
    host, _, port = addr.rpartition(":")
    whole = ":" not in host or (host.startswith("[") and host.endswith("]"))
    require(
        whole and port.isascii() and port.isdigit() and int(port) < 1 << 16,
        f"{name}: {addr!r} is not of the form host:port, with a port up to 65535",
    )


def require_parsed(config: object, name: str, parse: Callable[[str], float], prefix: str) -> None:
    """``parse`` takes the value of the field ``name`` of ``config``; ``prefix``: of the setting's path."""
    try:
        parse(getattr(config, name))
    except ValueError as error:
        raise ValueError(f"{prefix}{name.replace('_', '-')}: {error}") from None
