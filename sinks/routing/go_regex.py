r"""Regular expressions of a real Drainer's settings, which are Go's. Pure.

Promises: an expression means what it means to the real Drainer, or is refused: what only Go knows (``[[:alpha:]]``, ``\z``, ``\pL``, ``\Q..\E``)
has no counterpart here.
"""

import re
from functools import lru_cache

_ONLY_GO = re.compile(r"\[:\^?\w+:\]")


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> re.Pattern[str]:
    """``pattern`` without regard to case.

    Raises:
        re.error: it is not valid, or Python would read it in another way than Go.
    """
    known = _ONLY_GO.search(pattern)
    if known is not None:
        raise re.error(f"character classes such as {known.group()} are not known here, write [a-z] or \\w")
    if re.search(r"(?<!\\)(?:\\\\)*\\Z", pattern):
        raise re.error("Go does not know \\Z")
    return re.compile(pattern, re.IGNORECASE)
