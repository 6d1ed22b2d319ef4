"""Build the distributions, and run a job with them in an otherwise empty environment."""

import contextlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from relight.job import launcher_file

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
WORKERS = 2
SCRIPT = """
import os, sys
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], sys.argv[1:])
"""
EXPECTED = [f"rank {rank} of {WORKERS} ['--lr', '0.1']" for rank in range(WORKERS)]


def build(folder: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from the sdist; return the wheel and the sdist."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{done.stdout}{done.stderr}")
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def write_launcher(folder: Path) -> Path:
    """Write the single-file launcher; return its path."""
    path = folder / launcher_file.NAME
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    path.write_bytes(launcher_file.build())
    path.chmod(0o555)
    return path


def interpreter(version: str) -> str:
    """Return a working Python of this version from PATH or pyenv, or an empty string."""
    named = shutil.which(f"python{version}")
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    installed = sorted(root.glob(f"versions/{version}.*/bin/python"))
    for path in filter(None, (named, *map(str, installed))):
        # pyenv has shims even for versions that are not selected.
        asked = [path, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        if (
            subprocess.run(asked, capture_output=True, text=True, check=False).stdout
            == f"{version}\n"
        ):
            return path
    return ""


def unpack(wheel: Path, folder: Path) -> Path:
    """Unpack the wheel into a folder where any Python can find it, along with a command `relight`
    that is run by the `python3` on PATH; return the command.
    """
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    (command := folder / "relight.sh").write_text(
        f'#!/bin/sh\nPYTHONPATH={folder} exec python3 -m relight "$@"\n'
    )
    command.chmod(0o755)
    return command


def install(wheel: Path, python: str, folder: Path) -> Path:
    """Install only the wheel for a Python; return the environment's `bin` directory."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
    target = str(folder / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", target]
    subprocess.run([*pip, "install", "-q", "--no-index", "--no-deps", str(wheel)], check=True)
    return folder / "bin"


def run_job(relight: Path, python: Path, folder: Path) -> list[str]:
    """Run a small job with an installed command or the launcher file; return its sorted output.

    Args:
        relight: The command.
        python: The directory whose `python3` runs the launcher file.
        folder: The working directory.
    """
    (folder / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [str(relight), "run", f"--nproc-per-node={WORKERS}", "train.py", "--lr", "0.1"],
        cwd=folder,
        env={"PATH": f"{python}:/usr/bin:/bin", "HOME": str(folder), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return sorted(done.stdout.splitlines()) + done.stderr.splitlines()
