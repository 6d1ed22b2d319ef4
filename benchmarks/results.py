"""Turns samples into tables, plots and files, for all benchmarks."""

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
    """Return an argument parser with the option `--out`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", default=str(Path(__file__).with_name("results")))
    return parser


def machine(*, torch: bool = True) -> str:
    """Return a sentence that describes the machine where the samples were taken."""
    parts = [
        f"{os.cpu_count()} processors",
        f"Linux {platform.release().partition('-')[0]}",
        f"Python {platform.python_version()}",
        *([f"torch {version('torch')}"] if torch else []),
    ]
    return f"{', '.join(parts)}."


def number(value: float) -> str:
    """Format a number with three significant digits, or with all digits before the decimal
    point.
    """
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
    """Return the median with its unit, followed by the minimum and maximum in parentheses and, if
    requested, the number of samples. Without values, the result is empty.
    """
    if not values:
        return ""
    median, least, most = map(show, (statistics.median(values), min(values), max(values)))
    return f"{median}{unit} ({least} … {most}{f'; {len(values)}' if count else ''})"


def is_never(values: Sequence[float]) -> bool:
    """Return whether the event never happened, that is, whether all samples are infinite."""
    return min(values) == math.inf


def times(ours: Sequence[float], theirs: Sequence[float], *, more: bool = False) -> str:
    """Describe how many times better our median is; `more` is set if higher values are better. The
    result is empty without a median.
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
    """Return the lines of a Markdown table; the cells of a row are separated by ` | `."""
    rule = "|---" * (heads.count(" | ") + 1) + "|"
    head, *others = (f"| {row} |" for row in (heads, *rows))
    return [head, rule, *others]


def write(folder: str, name: str, content: object, lines: Sequence[str]) -> str:
    """Write `name.json` and `name.md`, and return the text of the latter."""
    os.makedirs(folder, exist_ok=True)
    text = "\n".join(lines) + "\n"
    Path(folder, f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    Path(folder, f"{name}.md").write_text(text)
    return text


def plots(ratios: Sequence[float], size: tuple[float, float]) -> tuple[Any, Any]:
    """Return a figure with plots side by side, in these width ratios, and the plots."""
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
    """Draw the samples for each name as bars, grouped around a number on the x axis. A bar of this
    width shows the median, labeled with its value, and each sample is drawn as a point. Infinite
    samples are drawn as a hatched bar up to `limit`. Returns one bar per name, for a legend.
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
    """Write `name.png`; the plots stay within this part of the figure."""
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    figure.tight_layout(rect=within)
    figure.savefig(os.path.join(folder, f"{name}.png"), dpi=120)
