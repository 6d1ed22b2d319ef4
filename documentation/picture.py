"""Renders a terminal recording as a picture that is readable on light and dark pages.

    python -m documentation.picture

This writes docs/pictures/recovery.svg from docs/pictures/recovery.cast (`documentation.recording`).
From the kill on, the left margin shows the time since the worker was killed.
"""

import json
import re
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from documentation.recording import CAST

PICTURE = CAST.with_suffix(".svg")
BEFORE, AFTER = 2, 3
"""How many lines of training output are shown before the kill and after the restart."""
_CHARACTER, _LINE, _MARGIN, _TIME = 7.2, 19, 16, 9
_ERASED = re.compile(r"\r\x1b\[K(\x1b\[2m[^\r\n]*\x1b\[0m)?")
"""Status lines that are erased on a terminal."""
_STYLE = """
  rect { fill: #17191e; stroke: #4a4f5a; }
  text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #d8dbe2; }
  .prompt { fill: #8fd18f; } .killed { fill: #ff8a7a; } .relight { fill: #ffb27a; }
  .time, .skipped { fill: #8a8f98; }
"""


class Line(NamedTuple):
    """One line of the picture: its time in seconds since the start, its style, and its text."""

    at: float
    style: str
    text: str


def lines(cast: str) -> tuple[list[Line], float]:
    """Return the lines of a recording, including the commands with a prompt, and the time of the
    kill.
    """
    head, *events = map(json.loads, cast.splitlines())
    found, killed_at = [Line(0.0, "prompt", f"$ {head['command']}")], 0.0
    for at, kind, data in events:
        if kind == "m":
            killed_at = at
            found.append(Line(at, "killed", f"(another terminal) $ {data}"))
            continue
        for text in _ERASED.sub("", data).splitlines():
            style = "relight" if text.startswith("relight:") else "output"
            found.append(Line(at, style, text))
    return found, killed_at


def shortened(all_lines: Sequence[Line], killed_at: float) -> list[Line]:
    """Return the lines without most of the output of undisturbed training."""
    kept: list[Line] = []
    epochs = [each.at for each in all_lines if each.text.startswith("epoch")]
    near = [at for at in epochs if at <= killed_at][-BEFORE:]
    near += [at for at in epochs if at > killed_at][:AFTER]
    for line in all_lines:
        if not line.text.startswith("epoch") or line.at in near:
            kept.append(line)
        elif kept[-1].style != "skipped":
            kept.append(Line(line.at, "skipped", "…"))
    return kept


def draw(cast: str) -> str:
    """Return the picture as SVG."""
    all_lines, killed_at = lines(cast)
    width = json.loads(cast.partition("\n")[0])["width"]
    rows: list[tuple[str, str, str]] = []
    for line in shortened(all_lines, killed_at):
        is_timed = line.at >= killed_at and line.style != "skipped"
        since = f"{line.at - killed_at:+.2f} s" if is_timed else ""
        parts = re.findall(rf".{{1,{width}}}(?:\s|$)", line.text) or [line.text]
        rows += [(since if not n else "", line.style, part) for n, part in enumerate(parts)]
    height = len(rows) * _LINE + 2 * _MARGIN - 6
    across = round((width + _TIME + 2) * _CHARACTER + 2 * _MARGIN)
    body = []
    for number, (since, style, text) in enumerate(rows):
        y = _MARGIN + 10 + number * _LINE
        left = round(_MARGIN + (_TIME + 2) * _CHARACTER)
        right = round(_MARGIN + _TIME * _CHARACTER)
        body.append(f'<text class="time" x="{right}" y="{y}" text-anchor="end">{since}</text>')
        body.append(f'<text class="{style}" x="{left}" y="{y}" xml:space="preserve">'
                    f"{escape(text.rstrip())}</text>")  # fmt: skip
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{across}" height="{height}" '
        f'viewBox="0 0 {across} {height}" role="img">',
        "<title>A terminal: a worker of a training is killed with kill -9, and the training goes on"
        " after the last saved epoch</title>",
        f"<style>{_STYLE}</style>",
        f'<rect width="{across}" height="{height}" rx="8"/>',
        *body,
        "</svg>",
        "",
    ])  # fmt: skip


def main() -> None:
    """Write the picture."""
    PICTURE.write_text(draw(CAST.read_text()))


if __name__ == "__main__":
    main()
