"""The owner of a Pump's data-dir: node id, cluster and user. File IO.

    .node     the Pump's id (pump.md 1): a real Pump's file
    .cluster  the id of the cluster whose binlogs are in the log; a real Pump ignores this file

Promises: a data-dir never serves a second cluster. Otherwise readers would get rows of the other cluster's tables, and a Prewrite could get
the outcome of the other cluster's transaction. A data-dir without ``.cluster``, a real Pump's, is assumed to be of the present cluster.
"""

import logging
import os
import pwd
import socket
from collections.abc import Iterator
from pathlib import Path

from pyspark_tidb_binlog.schemas.durable_file import replace_file
from pyspark_tidb_binlog.schemas.errors import ConfigError

_BLANK = " \t\r\n\0"
_PRIVATE = 0o600
_log = logging.getLogger(__name__)


def node_id_in(directory: Path, wanted: str, port: int) -> str:
    """The content of ``.node``, else ``wanted``, else hostname:port, which is then written to ``.node``."""
    file = directory / ".node"
    if file.exists():
        known = file.read_text(errors="replace").strip(_BLANK)
        if known:
            if wanted and wanted != known:
                _log.warning("node-id %s is ignored, because %s contains %s", wanted, file, known)
            return known
        _log.warning("%s is ignored, because the file is empty: a Pump died or its disk was full before the node id was written", file)
    if wanted:
        return wanted
    made = f"{socket.gethostname()}:{port}"
    replace_file(file, made, _PRIVATE)
    return made


def keep_cluster(directory: Path, cluster_id: int) -> None:
    """Note in ``directory``, whose lock is held, that it is of this cluster.

    Raises:
        ConfigError: the directory is of another cluster.
    """
    file = directory / ".cluster"
    known = file.read_text(errors="replace").strip(_BLANK) if file.exists() else ""
    if known == str(cluster_id):
        return
    if known:
        raise ConfigError(
            f"data directory {directory} has the binlogs of cluster {known} ({file}), but pd-urls, spark.registry or spark.cluster-id name cluster "
            f"{cluster_id}: name cluster {known}, or give this Pump a data-dir of its own. Remove {file} only if both ids are of the same cluster: "
            "readers take the binlogs for those of the named cluster"
        )
    try:
        replace_file(file, str(cluster_id), _PRIVATE)
    except OSError as error:
        # a full disk must not keep the Pump from serving its readers, and from collecting
        _log.warning("%s cannot be written now, and is written at the next start: %s", file, error)


def require_owner(directory: Path, command: str) -> None:
    """Refuse to write into another user's data-dir: that user's Pump could not open the new files.

    Raises:
        ConfigError: a file is not the effective user's. The error names the owner, and ``command`` to run as that user.
    """
    for file in _files(directory):
        owner = file.stat().st_uid
        if owner != os.geteuid():
            name = _user(owner)
            raise ConfigError(
                f"{file} belongs to user {name}, but this command runs as user {_user(os.geteuid())}: the Pump could not open the files of this command. "
                f"Run the command as {name}: sudo -u {name} {command}"
            )


def _files(directory: Path) -> Iterator[Path]:
    """The files that the store opens. A data-dir that is a mount point also has files of root."""
    yield from filter(Path.exists, (directory / ".lock", directory / "value", directory / "index"))
    for below in filter(Path.is_dir, (directory / "value", directory / "index")):
        yield from below.iterdir()


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"#{number}"
