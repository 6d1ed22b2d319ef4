"""Finds the code blocks in a page, and determines how each is tested.

- ```` ```bash ````: commands. A test runs the commands of a page from top to bottom in one
  directory, which contains a small `train.py` and the examples.
- ```` ```console ````: a terminal session, with commands after `$`; nothing is run. A block without
  a language is treated the same if it has such a line.
- ```` ```text ````: output, or anything that is not for a shell. Other languages have their usual
  meaning.

A comment before a block states that its commands are not run, and why, or that they take long:

    <!-- not run: needs a Slurm cluster -->
    <!-- run by make long -->

If such a comment is at the top of a page, before its title, it applies to all blocks on the page.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SHELLS = frozenset({"bash", "sh"})
LONG = "<!-- run by make long -->"
_NOT_RUN = re.compile(r"<!-- not run: (.+?) -->")
_FENCE = re.compile(r"^ *```")
_COMMAND = re.compile(r"(?<![\w/.-])relight\s+(\w+)\s?(.*)")
_VARIABLE = re.compile(r"\$\w+")


class Block(NamedTuple):
    """A fenced block: its language, its text, the line number of its fence, the reason why it is
    not run (empty if it is), and whether it takes long to run.
    """

    language: str
    text: str
    line: int
    reason: str
    long: bool


def pages() -> list[Path]:
    """Return the pages of the documentation, except the changelog."""
    found = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/*.md"),
        ROOT / "benchmarks" / "README.md",
    ]
    return sorted(path for path in found if path.name != "CHANGELOG.md")


def blocks(text: str) -> Iterator[Block]:
    """Yield the code blocks in a page.

    Raises:
        ValueError: if a block does not end.
    """
    lines = text.splitlines()
    top = _NOT_RUN.match(text)
    number = 0
    while number < len(lines):
        if not _FENCE.match(lines[number]):
            number += 1
            continue
        begin, language = number, lines[number].strip().strip("`").strip()
        number += 1
        while number < len(lines) and not _FENCE.match(lines[number]):
            number += 1
        if number == len(lines):
            raise ValueError(f"the block of line {begin + 1} does not end")
        if not language and any(line.startswith("$ ") for line in lines[begin + 1 : number]):
            language = "console"
        before = next((line for line in reversed(lines[:begin]) if line.strip()), "")
        said = _NOT_RUN.match(before.strip()) or top
        body = "\n".join(lines[begin + 1 : number])
        yield Block(language, body, begin + 1, said[1] if said else "", before.strip() == LONG)
        number += 1


def command_lines(block: Block) -> Iterator[tuple[str, list[str]]]:
    """Yield the relight commands in a block of commands or a terminal session, each with its
    arguments. Commands with an ellipsis (`…`) are skipped, and variables are replaced with 1.
    """
    text = block.text.replace("\\\n", " ")
    for line in text.splitlines():
        if block.language == "console" and not line.startswith("$ "):
            continue
        for part in re.split(r";|&&|\|", line.partition(" #")[0]):
            found = _COMMAND.search(part)
            if found and "…" not in part and not part.lstrip().startswith("#"):
                yield found[1], shlex.split(_VARIABLE.sub("1", found[2]))
