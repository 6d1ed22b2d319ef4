"""Blocks of commands run, links lead somewhere, and generated parts are current."""

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks import readme
from conftest import LIMIT_S, clean_environment
from documentation import failures, from_torchrun, messages, picture, site
from documentation.blocks import ROOT, SHELLS, Block, blocks, command_lines, pages
from documentation.recording import CAST

from relight.base import errors
from relight.base.env import Environment
from relight.cli.launch import LAUNCH_FLAGS
from relight.cli.main import COMMANDS
from relight.flags.arguments import parse, to_spec
from relight.flags.spec import FLAGS

PAGES = {str(page.relative_to(ROOT)): page for page in pages()}
KNOWN = SHELLS | {"console", "text", "python", "json", "yaml", "toml", "ini"}
COMMAND = re.compile(r"(?:relight|make|pip|uv|python|torchrun) ")
TRAIN = """
import os, sys
from relight.worker import progress
progress(0)
print("rank", os.environ.get("RANK"), "of", os.environ.get("WORLD_SIZE"), sys.argv[1:])
"""


def blocks_of(name: str) -> list[Block]:
    return list(blocks(PAGES[name].read_text()))


def run_now(block: Block, *, long: bool = False) -> bool:
    return block.language in SHELLS and not block.reason and block.long == long


WITH_COMMANDS = [name for name in PAGES if any(map(run_now, blocks_of(name)))]
WITH_LONG_ONES = [
    name for name in PAGES if any(run_now(block, long=True) for block in blocks_of(name))
]


@pytest.mark.parametrize("name", PAGES)
def test_each_block_has_a_known_language(name: str) -> None:
    """A shell block runs or says why not: see documentation/blocks.py for the marks."""
    for block in blocks_of(name):
        plain = not block.language and not any(map(COMMAND.match, block.text.splitlines()))
        assert plain or block.language in KNOWN, f"{name}:{block.line}: one of {sorted(KNOWN)}"


@pytest.mark.parametrize("name", PAGES)
def test_shown_relight_commands_exist(name: str) -> None:
    """Even in blocks that don't run, with their flags and values."""
    for block in blocks_of(name):
        if block.language not in SHELLS | {"console"}:
            continue
        for command, words in command_lines(block):
            assert command in {*COMMANDS, "version", "help"}, f"{name}:{block.line}"
            if command in ("run", "launch") and "--help" not in words:
                flags = FLAGS if command == "run" else LAUNCH_FLAGS
                to_spec(parse(words, Environment({}), flags))


def run_blocks(name: str, folder: Path, *, long: bool) -> None:
    """Run a page's blocks, from top to bottom in one shell."""
    (folder / "train.py").write_text(TRAIN)
    (folder / "examples").symlink_to(ROOT / "examples")
    shell = "set -euo pipefail\n"
    for block in blocks_of(name):
        if run_now(block) or (long and run_now(block, long=True)):
            # bash -e ignores the result of `! command`.
            text = re.sub(r"(?m)^! (.+)$", r"if \1; then false; fi", block.text)
            shell += f"\n: {name}:{block.line}\n{text}\n"
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-x", "-c", shell],
        cwd=folder,
        env=clean_environment(PATH=programs, HOME=str(folder), OMP_NUM_THREADS="1"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_COMMANDS)
def test_commands_of_page_run(name: str, tmp_path: Path) -> None:
    run_blocks(name, tmp_path, long=False)


@pytest.mark.long
@pytest.mark.parametrize("name", WITH_LONG_ONES)
def test_long_commands_of_page_run(name: str, tmp_path: Path) -> None:
    run_blocks(name, tmp_path, long=True)


LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = (re.sub(r"\]\([^)]*\)", "]", title) for title in HEADING.findall(text))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_files_and_headings(name: str) -> None:
    page = PAGES[name]
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`\n]+`", "", text)
    broken = []
    for target in LINK.findall(text):
        if "://" in target or target.startswith("mailto:"):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target)
    assert broken == []


def test_readme_figures_match_results() -> None:
    """`python -m benchmarks.readme` writes them."""
    text = readme.README.read_text()
    assert readme.filled(text) == text


def test_picture_is_drawn_from_recording() -> None:
    """`python -m documentation.picture` draws it."""
    assert picture.PICTURE.read_text() == picture.draw(CAST.read_text())
    assert picture.PICTURE.stat().st_size < 10_000
    ElementTree.parse(picture.PICTURE)  # browsers show nothing of a picture that is not XML


def test_failure_guide_is_current() -> None:
    """`python -m documentation.failures` writes it."""
    assert failures.PAGE.read_text() == failures.page()


def test_failure_guide_covers_all_messages() -> None:
    """Each entry is about existing messages."""
    told = [text for each in failures.CAUSES for text in each.says]
    found = list(failures.messages_of_source())
    assert len(found) > 40
    assert [text for text in found if not any(part in text for part in told)] == []
    sources = [
        text
        for path, names in failures.SOURCES.items()
        for text in messages.texts_of(messages.SOURCE / path, names)
    ]
    assert [part for part in told if not any(part in text for text in sources)] == []


def test_failure_guide_covers_all_exit_codes() -> None:
    codes = {name for name in vars(errors) if name.startswith("EXIT_")}
    assert codes - {"EXIT_OK", "EXIT_SIGNAL_BASE"} == failures.EXIT_CODES.keys()


@pytest.mark.needs_torch
def test_flags_page_is_current() -> None:
    """`python -m documentation.from_torchrun` writes it; torchrun's flags come from its parser."""
    assert from_torchrun.PAGE.read_text() == from_torchrun.page()


@pytest.mark.long
def test_site_builds_without_warnings_and_has_every_page(tmp_path: Path) -> None:
    """Links and anchors work, and the navigation has every page."""
    assert site.build(tmp_path) == ""
    shown = (tmp_path / "index.html").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        target = str(page.relative_to(ROOT).with_suffix(".html"))
        name = target.replace("README.html", "index.html")
        assert (tmp_path / name).exists(), name
        assert f'href="{name}"' in shown or page.name == "README.md", name
