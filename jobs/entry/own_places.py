"""Where logs and downloads go: into the checkout that the code lies in, else into the user's own directories, never beside installed code.

Promises: the first place that can be written is taken: ``var`` of a checkout; what the XDG variables name; the user's home; a directory in
the temporary one that only this user can open. One that others can write to is passed over. A process needs no ``HOME``, and none that it may
write to. Where data lies is a setting.
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
    """The directory of log files, which is there.

    Raises:
        ConfigError: there is no place for it.
    """
    return _first("log", "XDG_STATE_HOME", ".local/state")


def downloads() -> Path:
    """The directory of what can be made or fetched again, which is there.

    Raises:
        ConfigError: there is no place for it.
    """
    return _first("cache", "XDG_CACHE_HOME", ".cache")


def _first(what: str, variable: str, below_home: str) -> Path:
    tried = []
    for place in _candidates(what, variable, below_home):
        if _writable(place):
            return place
        tried.append(str(place))
    raise ConfigError(
        f"no directory for the {what} can be written: {', '.join(tried)}; name one with TIDB_BINLOG_LOG, {variable} or TMPDIR"
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
    """A directory in the temporary one. Its name can be guessed, so one that another user made is not taken."""
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
    """Whether others cannot have put there what is loaded from it: XDG_CACHE_HOME and HOME may be a directory of all users, as /tmp is."""
    trusted = (0, os.getuid())
    own, around = (place.stat(), place.parent.stat()), place.parent.parent.stat()
    if any(found.st_uid not in trusted or found.st_mode & stat.S_IWOTH for found in own):
        return False
    if not own[1].st_mode & 0o077:
        return True
    return not around.st_mode & stat.S_IWOTH or (bool(around.st_mode & stat.S_ISVTX) and around.st_uid in trusted)
