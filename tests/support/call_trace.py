"""Which of our functions ran during a call, in this thread: what a reader of that call must know."""

import sys
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PACKAGE = f"{Path(__file__).parents[2]}/pyspark_tidb_binlog/"


@dataclass
class CallTrace:
    """Records the calls of our functions while its block runs; those of the emulated upstream, which stands for another program, are none."""

    functions: set[tuple[str, str]] = field(default_factory=set)
    """(file, qualified name)."""
    callbacks: set[tuple[str, str]] = field(default_factory=set)
    """Those without a place of their own that are called by another function than the one they stand in."""
    depth: int = 0
    """The most of them that called one another."""
    _stack: list[types.CodeType] = field(default_factory=list)

    @property
    def files(self) -> set[str]:
        """The files of the functions."""
        return {file for file, _ in self.functions}

    def __enter__(self) -> "CallTrace":
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: types.FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        file = code.co_filename.removeprefix(_PACKAGE)
        if file == code.co_filename or file.startswith("jobs/lab/"):
            return
        if event == "return":
            if self._stack and self._stack[-1] is code:
                self._stack.pop()
        elif event == "call":
            self._called(file, code)

    def _called(self, file: str, code: types.CodeType) -> None:
        name = code.co_qualname
        outer, inner, _ = name.rpartition(".<locals>.")
        if not code.co_name.startswith("<") or code.co_name == "<lambda>":
            self.functions.add((file, name))
            if inner and self._stack and self._stack[-1].co_qualname != outer:
                self.callbacks.add((file, name))
        self._stack.append(code)
        self.depth = max(self.depth, len(self._stack))
