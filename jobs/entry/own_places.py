"""The directories of logs and downloads: in the checkout of the code, else in the user's own directories, never beside installed code.

Promises: the first writable place is used: ``var`` of a checkout, the directories of the XDG variables, the user's home, a private directory in the
temporary directory. A directory that others can write to is skipped. A process needs no ``HOME`` and no writable one. The places of data are settings.
"""

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyspark_tidb_binlog.conf.entry import HOME, IN_CHECKOUT
from pyspark_tidb_binlog.schemas.errors import ConfigError

_NAME = "tidb-binlog"


def logs() -> Path:
    """The directory of log files, which exists.

    Raises:
        ConfigError: no place is writable.
    """
    return _first("log", "XDG_STATE_HOME", ".local/state")


def downloads() -> Path:
    """The directory of files that can be made or fetched again, which exists.

    Raises:
        ConfigError: no place is writable.
    """
    return _first("cache", "XDG_CACHE_HOME", ".cache")


def _first(what: str, variable: str, below_home: str) -> Path:
    tried = []
    for place in _candidates(what, variable, below_home):
        if _writable(place):
            return place
        tried.append(str(place))
    raise ConfigError(
        f"no directory for the {what} is writable: {', '.join(tried)}; set TIDB_BINLOG_LOG, {variable} or TMPDIR to a writable place"
    )


def _candidates(what: str, variable: str, below_home: str) -> Iterator[Path]:
    if IN_CHECKOUT:
        yield HOME / "var" / what
    named = os.environ.get(variable, "")
    if Path(named).is_absolute():
        yield Path(named) / _NAME / what
    home = Path(os.path.expanduser("~"))
    if home.is_absolute():
        yield home / below_home / _NAME / what
    yield _of_this_user_alone() / what


def _of_this_user_alone() -> Path:
    """A private directory in the temporary directory. Others can guess its name, so a directory of another user is refused."""
    place = Path(tempfile.gettempdir()) / f"{_NAME}-{os.getuid()}"
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        found = place.lstat()
    except OSError:
        return place
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
        return place
    return Path(tempfile.mkdtemp(prefix=f"{_NAME}-"))


def _writable(place: Path) -> bool:
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(place, os.W_OK | os.X_OK) and (IN_CHECKOUT and place.is_relative_to(HOME) or _of_nobody_else(place))


def _of_nobody_else(place: Path) -> bool:
    """Whether no other user can write there, since code is loaded from it: XDG_CACHE_HOME and HOME may be shared, like /tmp."""
    trusted = (0, os.getuid())
    own, around = (place.stat(), place.parent.stat()), place.parent.parent.stat()
    if any(found.st_uid not in trusted or found.st_mode & stat.S_IWOTH for found in own):
        return False
    if not own[1].st_mode & 0o077:
        return True
    return not around.st_mode & stat.S_IWOTH or (bool(around.st_mode & stat.S_ISVTX) and around.st_uid in trusted)
