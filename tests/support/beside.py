"""Work that goes on in a thread as long as a block does."""

import contextlib
import threading
from typing import Self


class Beside:
    """``work`` is called again and again; what it raises fails the block at its end."""

    pause = 0.02
    """Seconds between two calls."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)

    def work(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        with contextlib.ExitStack() as noted:
            noted.push(lambda kind, error, trace: self._failed.append(error) if error else None)
            while not self._over.wait(self.pause):
                self.work()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        assert not self._failed
