"""The status page's colours are distinguishable, in light and dark mode (WCAG 2.2, AA)."""

import re
from importlib.resources import files
from pathlib import Path

import pytest

from relight.core.status.phases import PHASES

CSS = (files("relight.inspect.page") / "assets" / "page.css").read_text()
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
    for block in re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
)
TEXTS = [
    *(("text", back) for back in ("back", "card", "code", "hover")),
    *(("soft", back) for back in ("back", "card", "hover")),
    *((f"{mood}-text", f"{mood}-back") for mood in ("good", "bad", "warn", "idle")),
    *(("bad-text", back) for back in ("back", "card", "hover")),
]
COLOURS = ("run", "busy", "detect", "frozen", "spawn", "import", "init", "first", "lost", "wait",
           "stop", "idle")  # fmt: skip
MARKS = ("bad", "focus", "warn", "text", "soft")
SHAPES = [
    *((name, back) for name in ("focus", "edge") for back in ("back", "card", "hover")),
    *((name, "back") for name in ("good", "bad", "idle")),
    *((name, back) for name in (*COLOURS, *MARKS) for back in ("card", "idle-back")),
]


def contrast(one: str, other: str) -> float:
    """Return the contrast between two colours (WCAG 2.2, "contrast ratio")."""

    def light(colour: str) -> float:
        parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(p * weight for p, weight in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))

    dark, bright = sorted((light(one), light(other)))
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("pairs", "least"), [(TEXTS, 4.5), (SHAPES, 3.0)], ids=["texts 1.4.3", "shapes 1.4.11"]
)
def test_colours_meet_contrast_requirements(
    colours: dict[str, str], pairs: list[tuple[str, str]], least: float
) -> None:
    """This covers text on its background, field borders, the focus, bars and marks."""
    poor = {
        pair: round(ratio, 2)
        for pair in pairs
        if (ratio := contrast(colours[pair[0]], colours[pair[1]])) < least
    }
    assert not poor


def test_each_phase_has_its_own_documented_colour() -> None:
    colours = dict(re.findall(r"^\.p-([\w-]+) \{ background: (.*?); \}$", CSS, re.MULTILINE))
    assert set(colours) == {phase.replace("_", "-") for phase in PHASES}
    assert len(set(colours.values())) == len(colours)
    page = (Path(__file__).parents[2] / "docs" / "watching.md").read_text()
    table = page.partition("| phase |")[2]
    assert not [words for words in PHASES.values() if words.split()[0] not in table]


def test_light_and_dark_modes_define_all_colours() -> None:
    """Rules define no colours of their own, because the contrast test would miss them."""
    assert set(LIGHT) == set(DARK)
    rules = re.sub(r":root \{.*?\}", "", CSS, flags=re.DOTALL)
    assert not re.findall(r"#[0-9a-fA-F]{3,8}\b(?=[^{]*;)", rules)
