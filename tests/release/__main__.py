"""`make dist`: build the distributions into dist/, check them, and try them on each Python."""

import subprocess
import sys
import tempfile
from pathlib import Path

from .distribution import (
    EXPECTED,
    ROOT,
    VERSIONS,
    build,
    install,
    interpreter,
    run_job,
    write_launcher,
)


def main() -> int:
    """Build and check; return 1 if an available Python does not run the job."""
    dist = ROOT / "dist"
    for old in dist.glob("*"):
        old.unlink()
    wheel, sdist = build(dist)
    subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)], check=True
    )
    launcher = write_launcher(dist)
    failed = False
    for version in VERSIONS:
        with tempfile.TemporaryDirectory(prefix="relight-release-") as name:
            folder = Path(name)
            python = interpreter(version) or fetched(version, folder)
            if not python:
                print(f"Python {version}: skipped: not installed, and uv could not fetch it")
                continue
            programs = install(wheel, python, folder / "environment")
            for what, command in (("wheel", programs / "relight"), ("one file", launcher)):
                found = run_job(command, programs, folder)
                print(f"Python {version}, {what}: {'ok' if found == EXPECTED else found}")
                failed |= found != EXPECTED
    print("\n".join(f"{path.stat().st_size:>9} {path}" for path in sorted(dist.iterdir())))
    return int(failed)


def fetched(version: str, folder: Path) -> str:
    """Return a Python that uv downloads into a folder, or an empty string if that fails."""
    uv = [sys.executable, "-m", "uv", "python", "install", "--no-bin", "-q", version]
    done = subprocess.run(
        [*uv, "--install-dir", str(folder)], capture_output=True, text=True, check=False
    )
    found = sorted(folder.glob(f"cpython-{version}*/bin/python{version}"))
    return str(found[0]) if done.returncode == 0 and found else ""


if __name__ == "__main__":
    sys.exit(main())
