"""Builds the site from the pages of the repository.

    python -m documentation.site [DIRECTORY]        # .build/site by default

The pages keep their places, so that their links lead to the same files in the repository and on the
site. The navigation is docs/README.md: its headings, and the pages that it lists below them; a page
that it does not list is under "More", or under the name of its folder.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from documentation import messages
from documentation.blocks import ROOT

OUT = ROOT / ".build" / "site"
SHOWN = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "LICENSE",
    "docs",
    "examples",
    "benchmarks",
)
"""What of the repository is on the site."""
MESSAGES = "messages.md"
"""A page that is on the site alone: it is read from the source."""
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#]+\.md)\)")


def navigation() -> list[dict[str, Any]]:
    """Return the navigation, as mkdocs wants it."""
    index = ROOT / "docs" / "README.md"
    nav: list[dict[str, Any]] = [{"relight": "README.md"}]
    seen = {index}
    for part in re.split(r"^## ", index.read_text(), flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        entries: list[dict[str, str]] = []
        for name, target in _LINK.findall(body):
            path = (index.parent / target).resolve()
            if path not in seen:
                seen.add(path)
                entries.append({name: str(path.relative_to(ROOT))})
        nav.append({title: entries})
    more: dict[str, list[dict[str, str]]] = {}
    for path in sorted((ROOT / "docs").rglob("*.md")):
        if path not in seen:
            group = "More" if path.parent == index.parent else path.parent.name.capitalize()
            more.setdefault(group, []).append({_title(path): str(path.relative_to(ROOT))})
    return [*nav, *({group: entries} for group, entries in more.items())]


def _title(page: Path) -> str:
    found = re.search(r"^# (.+)$", page.read_text(), flags=re.MULTILINE)
    return found[1].replace("`", "") if found else page.stem


def build(out: Path) -> str:
    """Build the site strictly: a link or an anchor that leads nowhere is an error.

    Returns:
        What is wrong; empty if nothing is.
    """
    with tempfile.TemporaryDirectory(prefix="relight-site-") as name:
        source = Path(name) / "source"
        source.mkdir()
        for entry in SHOWN:
            (source / entry).symlink_to(ROOT / entry)
        (source / MESSAGES).write_text(messages.page())
        config = Path(name) / "mkdocs.yml"
        settings = {
            "INHERIT": str(ROOT / "documentation" / "mkdocs.yml"),
            "docs_dir": str(source),
            "site_dir": str(out),
            "nav": [*navigation(), {"All messages": MESSAGES}],
            "plugins": {"mkdocstrings": {"handlers": {"python": {"paths": [str(ROOT / "src")]}}}},
        }
        config.write_text(json.dumps(settings))  # which is YAML as well
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode else ""


def main() -> int:
    """Return 1 if something is wrong."""
    out = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else OUT
    wrong = build(out)
    print(wrong or out / "index.html")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
