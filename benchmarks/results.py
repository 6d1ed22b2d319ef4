"""What all measurements do with their samples: tables, plots, files."""

import argparse
import json
import math
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

COLOURS = {"relight": "#d9622b", "torchrun": "#8a8f98"}


def arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser that has `--out`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", default=str(Path(__file__).with_name("results")))
    return parser


def machine(*, torch: bool = True) -> str:
    """Return what the samples were taken on, as a sentence."""
    parts = [
        f"{os.cpu_count()} processors",
        f"Linux {platform.release().partition('-')[0]}",
        f"Python {platform.python_version()}",
        *([f"torch {version('torch')}"] if torch else []),
    ]
    return f"{', '.join(parts)}."


def number(value: float) -> str:
    """Return a number with three digits, or all digits before the point."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 else f"{value:.0f}"


def spread(
    values: Sequence[float],
    show: Callable[[float], str] = number,
    unit: str = "",
    *,
    count: bool = False,
) -> str:
    """Return the median with its unit; in brackets the least, the most and, if asked, how many.
    Nothing if there are no values.
    """
    if not values:
        return ""
    median, least, most = map(show, (statistics.median(values), min(values), max(values)))
    return f"{median}{unit} ({least} … {most}{f'; {len(values)}' if count else ''})"


def is_never(values: Sequence[float]) -> bool:
    """Whether what was waited for never came: all samples are infinite."""
    return min(values) == math.inf


def times(ours: Sequence[float], theirs: Sequence[float], *, more: bool = False) -> str:
    """Return in words how many times better our median is; `more` says whether more is better.
    Nothing if they have no median.
    """
    if not theirs or is_never(theirs):
        return ""
    least, most = statistics.median(ours), statistics.median(theirs)
    if more:
        least, most = most, least
    if not least:
        return "nothing to be seen"
    return f"{number(most / least)} times"


def table(heads: str, rows: Iterable[str]) -> list[str]:
    """Return the lines of a table in Markdown; ` | ` is between the cells of a row."""
    rule = "|---" * (heads.count(" | ") + 1) + "|"
    head, *others = (f"| {row} |" for row in (heads, *rows))
    return [head, rule, *others]


def write(folder: str, name: str, content: object, lines: Sequence[str]) -> str:
    """Write `name.json` and `name.md`; return the text of the latter."""
    os.makedirs(folder, exist_ok=True)
    text = "\n".join(lines) + "\n"
    Path(folder, f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    Path(folder, f"{name}.md").write_text(text)
    return text


def plots(ratios: Sequence[float], size: tuple[float, float]) -> tuple[Any, Any]:
    """Return a figure with plots side by side, so wide to each other, and the plots."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(ratios), figsize=size, squeeze=False, gridspec_kw={"width_ratios": ratios}
    )
    return figure, axes[0]


def bars(
    axis: Any,
    groups: Sequence[Mapping[str, Sequence[float]]],
    width: float,
    colours: Mapping[str, str] = COLOURS,
    limit: float = math.inf,
) -> dict[str, Any]:
    """Draw groups of samples by name, each group around its number on the x axis: the median as a
    bar of this width with its number above, each sample as a point. Samples that are infinite are
    drawn as a hatched bar up to `limit`. Returns one bar of each name, for a legend.
    """
    drawn: dict[str, Any] = {}
    for place, group in enumerate(groups):
        for number, (name, values) in enumerate(group.items()):
            if not values:
                continue
            at = place + (width + 0.02) * (number - (len(group) - 1) / 2)
            median = statistics.median(values)
            text = f"{median:.2g}" if median < 10 else f"{median:,.0f}"
            if is_never(values):
                axis.bar(at, limit, width, color=colours[name])[0].set_hatch("//")
                values, text = [limit], f"> {limit:.0f}"
            else:
                drawn[name] = axis.bar(at, median, width, color=colours[name])
            axis.plot([at] * len(values), values, ".", color="black", markersize=3)
            axis.annotate(text, (at, max(values)), ha="center", xytext=(0, 4),
                          textcoords="offset points", fontsize=7)  # fmt: skip
    axis.margins(y=0.15)
    return drawn


def save(
    figure: Any,
    folder: str,
    name: str,
    *,
    within: tuple[float, float, float, float] = (0, 0, 1, 1),
) -> None:
    """Write `name.png`; the plots keep within this part of the figure."""
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    figure.tight_layout(rect=within)
    figure.savefig(os.path.join(folder, f"{name}.png"), dpi=120)
