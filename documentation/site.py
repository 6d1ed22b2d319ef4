"""Builds the documentation site from the pages in the repository.

    python -m documentation.site [DIRECTORY]        # .build/site by default

Pages keep their paths, so that links lead to the same files in the repository and on the site. The
navigation is derived from docs/README.md: its headings, and the pages listed below them. Other
pages appear under "More", or under the name of their folder.
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
"""The parts of the repository that are on the site."""
MESSAGES = "messages.md"
"""A page that only exists on the site; it is generated from the source."""
API_REFERENCE = "api_reference.md"
"""Another one. Its template in this directory lists modules for mkdocstrings."""
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#]+\.md)\)")


def navigation() -> list[dict[str, Any]]:
    """Return the navigation in the format that mkdocs expects."""
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
    """Build the site in strict mode, where a broken link or anchor is an error.

    Returns:
        An error message; empty if the build succeeded.
    """
    with tempfile.TemporaryDirectory(prefix="relight-site-") as name:
        source = Path(name) / "source"
        source.mkdir()
        for entry in SHOWN:
            (source / entry).symlink_to(ROOT / entry)
        (source / MESSAGES).write_text(messages.page())
        template = ROOT / "documentation" / API_REFERENCE
        (source / API_REFERENCE).write_text(template.read_text())
        config = Path(name) / "mkdocs.yml"
        settings = {
            "INHERIT": str(ROOT / "documentation" / "mkdocs.yml"),
            "docs_dir": str(source),
            "site_dir": str(out),
            "nav": [
                *navigation(),
                {"All messages": MESSAGES},
                {"Signatures and docstrings": API_REFERENCE},
            ],
            "plugins": {"mkdocstrings": {"handlers": {"python": {"paths": [str(ROOT / "src")]}}}},
        }
        config.write_text(json.dumps(settings))  # JSON is valid YAML
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode else ""


def main() -> int:
    """Build the site, and return 1 if that failed."""
    out = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else OUT
    wrong = build(out)
    print(wrong or out / "index.html")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
