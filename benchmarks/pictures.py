"""The pictures of README: the demo's terminal, two plots of the notebook and the drainer's page, from real runs.

    python -m benchmarks.pictures [--only demo|notebook|page] [--anyway]

A short run warms the machine up; the next run is drawn. Nothing is drawn if the machine is not quiet before and during the run (``benchmarks.quiet``):
other load would falsify the picture. ``--anyway`` draws in any case, into ``var/pictures``.

Promises: ``screen_of`` and ``terminal_picture`` are pure. The pictures show a terminal of ``COLUMNS`` at the demo's end, and the figures of the notebook.
"""

import argparse
import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from benchmarks.notebook_form import SOURCE, cells_of
from benchmarks.quiet import disturbance, watched

PROJECT = SOURCE.parent.parent
IMAGES = PROJECT / "docs" / "images"
ANYWAY = PROJECT / "var" / "pictures"
COLUMNS = 128
_CONTROL = re.compile(r"(\n|\r|\x1b\[[\d;]*[A-Za-z])")
_MOVE = re.compile(r"\x1b\[([\d;]*)([A-Za-z])")
WARM_UP, SECONDS = 6, 60
"""For how long the two runs write."""
_LOOK_SECONDS = 6.0
"""For how long the machine is watched before a run."""
_WIDE, _HIGH, _MARGIN = 7.8, 18, 14
"""Pixels: a character, a line, around the text."""
PAGE_WIDE, PAGE_HIGH = 1180, 1410
_PATIENCE = 240.0
"""Seconds until a drainer has applied rows."""


def screen_of(output: str, columns: int) -> list[str]:
    """The lines that a terminal shows after ``output``, without colours. It knows what our programs send (``jobs/stream/reporter.py``) and never scrolls."""
    lines, row, column = [""], 0, 0
    for part in filter(None, _CONTROL.split(output.replace("\r\n", "\n"))):
        move = _MOVE.fullmatch(part)
        if part == "\n":
            row, column = row + 1, 0
        elif part == "\r":
            column = 0
        elif move is None:
            lines += [""] * (row + 1 - len(lines))
            line = lines[row].ljust(column)
            lines[row] = line[:column] + part + line[column + len(part) :]
            column += len(part)
        elif move[2] == "A":
            row = max(0, row - int(move[1] or 1))
        elif move[2] == "H":
            row, column = 0, 0
        elif move[2] in "JK":
            kept = lines[:row] if move[1] != "2" else [""] * row
            rest = lines[row + 1 :] if move[2] == "K" else []
            lines = [*kept, *([""] * (row - len(kept))), (lines[row] if row < len(lines) else "")[:column], *rest]
    shown = "\n".join(lines).rstrip().split("\n")
    return [line[begin : begin + columns] for line in shown for begin in range(0, max(1, len(line)), columns)]


def terminal_picture(lines: Sequence[str], columns: int) -> str:
    """The lines as an SVG image of a terminal; a line that begins with ``$`` is a command."""
    width, height = round(columns * _WIDE) + 2 * _MARGIN, len(lines) * _HIGH + 2 * _MARGIN
    rows = []
    for number, line in enumerate(lines, 1):
        colour = "#7ee787" if line.startswith("$") else "#e6edf3"
        # Its length is fixed, so that columns stand below each other whatever font there is.
        length = f' textLength="{len(line) * _WIDE:.0f}"' if len(line) > 1 else ""
        # Of each text: in Chromium, that of the image does not keep its spaces.
        rows.append(
            f'<text xml:space="preserve" x="{_MARGIN}" y="{_MARGIN + number * _HIGH - 4}" fill="{colour}"{length}>{escape(line)}</text>'
        )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            'font-family="ui-monospace, SFMono-Regular, Menlo, DejaVu Sans Mono, Consolas, monospace" font-size="13">',
            f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>',
            *rows,
            "</svg>\n",
        ]
    )


def output_of(command: Sequence[str]) -> str:
    """What ``command`` prints on a terminal."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=its, stderr=its, cwd=PROJECT) as process:
        os.close(its)
        taken = bytearray()
        while True:
            try:
                read = os.read(ours, 65536)
            except OSError:  # Linux' way to say that the other end is closed
                break
            if not read:
                break
            taken += read
    os.close(ours)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{taken.decode(errors='replace')}")
    return taken.decode()


def demo(seconds: int) -> dict[str, bytes]:
    """``demo.svg``."""
    command = ("./spark-submit.sh", "demo", "--seconds", str(seconds))
    lines = [f"$ {' '.join(command)}", *screen_of(output_of(command), COLUMNS)]
    return {"demo.svg": terminal_picture(lines, COLUMNS).encode()}


def notebook(seconds: int) -> dict[str, bytes]:
    """``lag.png``: the figure before the last that the notebook displays. A second run has the session of the first."""
    os.environ |= {"MPLBACKEND": "agg", "TIDB_BINLOG_NOTEBOOK_SECONDS": str(seconds)}
    shown: list[Any] = []
    names: dict[str, Any] = {"__name__": "notebook", "display": shown.append}
    for cell in cells_of(SOURCE.read_text()):
        if not (cell.is_markdown or cell.is_command):
            exec(compile(cell.text, str(SOURCE), "exec"), names)
    *_, lag, _ = (one for one in shown if hasattr(one, "savefig"))
    return {"lag.png": _png(lag)}


def page(seconds: int) -> dict[str, bytes]:
    """``page-light.png`` and ``page-dark.png``: the page of a playground's drainer, after so many seconds."""
    # Only this picture needs Selenium.
    from tests.support.browser import browser

    command = ("./spark-submit.sh", "playground", "--target", "--port=0", "--progress=none")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=PROJECT) as process, browser() as window:
        try:
            assert process.stdout is not None
            address = next(found[1] for line in process.stdout if (found := re.search(r"shows the drainer at (\S+)", line)))
            window.open(address, PAGE_WIDE, PAGE_HIGH)
            window.shows("tables", "demo.", _PATIENCE)
            time.sleep(seconds)
            drawn = {"page-light.png": window.picture()}
            window.open(address, PAGE_WIDE, PAGE_HIGH, dark=True)
            window.shows("tables", "demo.", _PATIENCE)
            return drawn | {"page-dark.png": window.picture()}
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()


def _png(figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, dpi=110)
    return file.getvalue()


PICTURES: Mapping[str, Callable[[int], dict[str, bytes]]] = {"demo": demo, "notebook": notebook, "page": page}


def main(argv: Sequence[str]) -> int:
    """Draw them; exit code 1 when the machine was not quiet."""
    options = argparse.ArgumentParser(description="The pictures of README, from real runs.")
    options.add_argument("--only", choices=PICTURES, help="draw this one (default: all)")
    options.add_argument("--anyway", action="store_true", help=f"draw on a busy machine, too, into {ANYWAY.relative_to(PROJECT)}")
    arguments = options.parse_args(argv)
    folder, cores = ANYWAY if arguments.anyway else IMAGES, os.cpu_count() or 1
    folder.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    for name in [arguments.only] if arguments.only else PICTURES:
        with watched() as before:
            time.sleep(_LOOK_SECONDS)
        disturbed = disturbance(before, cores, load)
        if not disturbed or arguments.anyway:
            load = 0.0  # from now on it is ours
            PICTURES[name](WARM_UP)
            with watched() as during:
                drawn = PICTURES[name](SECONDS)
            disturbed = disturbance(during, cores)
        if disturbed:
            print(
                f"{name}: the machine is not quiet: {disturbed}. End other programs and try again, or draw with --anyway", file=sys.stderr
            )
        if disturbed and not arguments.anyway:
            return 1
        for file, content in drawn.items():
            (folder / file).write_bytes(content)
            print(f"drawn: {(folder / file).relative_to(PROJECT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
