"""Write requirements.lock: the newest compatible versions of everything that make installs.

They are constraints (`pip install -c`) and not a list of what to install, so a Python version or a
machine that needs other packages still gets them.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
GROUPS = ("quick", "test", "long", "docs", "bench")
HEAD = "# Written by `make lock`, for Python {}.{}; see [dependency-groups] in pyproject.toml.\n"


def resolve() -> dict[str, str]:
    """Return each package's version."""
    groups = [word for group in GROUPS for word in ("--group", group)]
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    done = subprocess.run(
        [*pip, "--dry-run", "--ignore-installed", "--report", "-", "pip", "-e", ".[examples]",
         *groups],
        cwd=ROOT, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    found = (each["metadata"] for each in json.loads(done.stdout)["install"])
    versions = {each["name"].lower().replace("_", "-"): each["version"] for each in found}
    return {name: version.partition("+")[0] for name, version in versions.items()}


def main() -> None:
    """Write the file."""
    lines = [
        f"{name}=={version}\n" for name, version in sorted(resolve().items()) if name != "relight"
    ]
    LOCK.write_text(HEAD.format(*sys.version_info) + "".join(lines))


if __name__ == "__main__":
    main()
