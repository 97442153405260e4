"""The values of settings that are not set and have no constant default: addresses of this machine, variables, other settings.

Promises: as in the real programs (``adjustConfig``, ``flags``), an empty text and 0 count as not set. The exception is ``pd-urls = ""``: no
PD. A program that makes its own ``conf.model`` objects gets the constant of the field instead.
"""

import fcntl
import ipaddress
import json
import re
import socket
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark_tidb_binlog.conf.setting import Values

PD_URLS = "http://127.0.0.1:2379"
KEPT = "tidb-binlog.json"
"""The file in Spark's checkpoint directory with what must not change, or is remembered, from one start to the next (JSON)."""
KEPT_NODE_ID = "node_id"
"""The key in it of the name that the Drainer registered with."""
_HOST_AND_PORT = re.compile(r"([^\s:/]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}")
_SIOCGIFADDR = 0x8915


def first_ipv4() -> str:
    """The first IPv4 address of this machine that is for others to reach; 127.0.0.1 where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # it has no IPv4 address
            address = ipaddress.IPv4Address(answer[20:24])
            if not (address.is_loopback or address.is_unspecified or address.is_link_local or address.is_multicast):
                return str(address)
    return "127.0.0.1"


def _own_host(registry: str) -> str:
    """Where to listen: for others only if a host of ``registry``, its URLs, is not this machine's loopback. The real programs always do."""
    hosts = (url.rpartition("://")[2].rpartition(":")[0].strip("[]") for url in registry.split(",") if "://" in registry)
    return "127.0.0.1" if all(map(_is_loopback, hosts)) else first_ipv4()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def registry_url(pd_urls: str, secure: bool) -> str:
    """``http://a:2379,http://b:2379`` as the URL of a registry: ``pd://a:2379,b:2379``. ``secure``: whether ``security.ssl-ca`` is set.

    Raises:
        ValueError: a URL has another form, or only one of ``https://`` and ``security.ssl-ca`` is set. A cluster with certificates must not
            send anything without TLS.
    """
    hosts = []
    for url in (part.strip() for part in pd_urls.split(",")):
        scheme, _, host = url.rstrip("/").partition("://")
        if "@" in host:
            raise ValueError("pd-urls: PD takes no user and no password: write http://host:port")
        if scheme not in ("http", "https") or not _HOST_AND_PORT.fullmatch(host):
            raise ValueError(f"pd-urls: {url!r} is not of the form http://host:port or https://host:port")
        if (scheme == "https") != secure:
            why = "with security.ssl-ca, PD is called over TLS: write https://" if secure else "https:// needs security.ssl-ca"
            raise ValueError(f"pd-urls: {url!r}: {why}")
        hosts.append(host)
    return "pd://" + ",".join(hosts)


def fill_drainer(values: Values, environ: Mapping[str, str]) -> None:
    """Set what is not set and has no constant default.

    Raises:
        ValueError: no value can be found.
    """
    _fill(values, "log-level", lambda: "info")
    _fill(values, "data-dir", lambda: "data.drainer")
    _fill(values, "spark.checkpoint-dir", lambda: f"{values['data-dir']}/spark")
    _fill(values, "spark.delta-dir", lambda: f"{values['data-dir']}/delta")
    _fill(values, "syncer.to.host", lambda: environ.get("MYSQL_HOST") or "localhost")
    _fill(values, "syncer.to.port", lambda: _port(environ.get("MYSQL_PORT", "")))
    _fill(values, "syncer.to.user", lambda: environ.get("MYSQL_USER") or "root")
    _fill(values, "syncer.to.password", lambda: environ.get("MYSQL_PSWD", ""))
    if values.get("syncer.db-type") == "kafka":
        _fill(values, "syncer.to.kafka-addrs", lambda: environ.get("KAFKA_ADDRS") or "127.0.0.1:9092")
    _one_registry(values, "spark.pumps")
    if values["pd-urls"]:
        values["spark.pumps"] = registry_url(str(values["pd-urls"]), bool(values.get("security.ssl-ca")))
    _fill(values, "addr", lambda: f"{_own_host(str(values.get('spark.pumps', '')))}:8249")
    _fill(values, "node-id", lambda: _node_id(values))


def fill_pump(values: Values, environ: Mapping[str, str]) -> None:
    """Set what is not set and has no constant default."""
    _fill(values, "log-level", lambda: "info")
    _fill(values, "heartbeat-interval", lambda: 2.0)
    _fill(values, "data-dir", lambda: "data.pump")
    _one_registry(values, "spark.registry")
    if values["pd-urls"]:
        registry_url(str(values["pd-urls"]), bool(values.get("security.ssl-ca")))
    _fill(values, "addr", lambda: f"{_own_host(str(values['pd-urls'] or values.get('spark.registry', '')))}:8250")


def _node_id(values: Values) -> str:
    """The name that this Drainer had before, if its checkpoint is on this machine, else ``hostname:port``."""
    port = str(values["addr"]).rpartition(":")[2]
    before = _name_kept(str(values["spark.checkpoint-dir"]))
    if not before and port == "0" and "://" in str(values["spark.pumps"]):
        raise ValueError(f"addr {values['addr']} asks for any free port, so node-id has no default: set node-id")
    return before or f"{socket.gethostname()}:{port}"


def _name_kept(checkpoint_dir: str) -> str:
    try:
        kept = json.loads((Path(checkpoint_dir.removeprefix("file:")) / KEPT).read_text("utf-8"))
    except (OSError, ValueError):
        return ""
    return str(kept.get(KEPT_NODE_ID, "")) if isinstance(kept, dict) else ""


def _one_registry(values: Values, other: str) -> None:
    """PD, unless ``other`` is set and ``pd-urls`` is not, or has its default."""
    asked = values.get("pd-urls", PD_URLS)
    if values.get(other) and asked == PD_URLS:
        asked = ""
    if values.get(other) and asked:
        raise ValueError(f"pd-urls and {other} are both set: remove one of them")
    values["pd-urls"] = asked


def _fill(values: Values, path: str, otherwise: Callable[[], object]) -> None:
    if values.get(path) in (None, "", 0):
        values[path] = otherwise()


def _port(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and int(text) else 3306
