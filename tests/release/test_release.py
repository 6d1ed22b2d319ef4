"""The distributions are complete, and run where nothing else is installed."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import relight

from .distribution import (
    EXPECTED,
    ROOT,
    VERSIONS,
    build,
    install,
    interpreter,
    run_job,
    unpack,
    write_launcher,
)

pytestmark = pytest.mark.slow

Built = tuple[Path, Path]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PRESENT = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    """The wheel and the sdist."""
    yield build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def programs(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the `bin` directory of an environment that contains only the wheel."""
    return install(built[0], sys.executable, tmp_path_factory.mktemp("environment"))


def test_version_is_defined_in_one_place(built: Built) -> None:
    """Package, wheel, sdist, and changelog take it from `relight/__init__.py`."""
    wheel, sdist = built
    assert wheel.name == f"relight-{relight.__version__}-py3-none-any.whl"
    assert sdist.name == f"relight-{relight.__version__}.tar.gz"
    assert "version" not in PROJECT


def test_wheel_contains_exactly_the_package_files(built: Built) -> None:
    """The type marker and the licence are included; tests and caches are not."""
    with zipfile.ZipFile(built[0]) as archive:
        names = archive.namelist()
    source = ROOT / "src"
    files = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    files = {name for name in files if "__pycache__" not in name and ".egg-info" not in name}
    info = f"relight-{relight.__version__}.dist-info"
    files |= {"relight/commit"} if (ROOT / ".git").exists() else set()
    assert {name for name in names if not name.startswith(info)} == files
    assert "relight/py.typed" in files
    assert f"{info}/licenses/LICENSE" in names
    assert f"{info}/entry_points.txt" in names


def test_sdist_contains_all_sources_of_the_wheel(built: Built) -> None:
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {name for name in names if not name.startswith("src/relight/")} == {
        ".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "hatch_build.py",
        "pyproject.toml",
    }  # fmt: skip
    assert "src/relight/py.typed" in names
    assert not [name for name in names if "__pycache__" in name]


def test_twine_accepts_wheel_and_sdist(built: Built) -> None:
    """The metadata and the description are valid."""
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *map(str, built)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout


def test_job_runs_from_installed_wheel_and_from_launcher_file(
    programs: Path, tmp_path: Path
) -> None:
    """The environment is otherwise empty. `make dist` does this with each Python."""
    assert run_job(programs / "relight", programs, tmp_path) == EXPECTED
    assert run_job(write_launcher(tmp_path), programs, tmp_path) == EXPECTED


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone")
def test_wheel_reports_the_commit_it_was_built_from(programs: Path) -> None:
    """The wheel, built from the sdist, reports it in `relight --version`."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    said = subprocess.run(
        [programs / "relight", "--version"], capture_output=True, text=True, check=True
    ).stdout
    assert said.startswith(f"relight {relight.__version__} (commit {commit}"), said


@pytest.mark.parametrize("version", [each for each in VERSIONS if each != PRESENT])
def test_job_runs_on_every_other_available_python_version(
    version: str, built: Built, tmp_path: Path
) -> None:
    """`make dist` also installs the wheel for each version."""
    if not (python := interpreter(version)):
        pytest.skip(f"no Python {version} here")
    (programs := tmp_path / "bin").mkdir()
    for name in ("python", "python3"):
        (programs / name).symlink_to(python)
    for command in (unpack(built[0], tmp_path / "wheel"), write_launcher(tmp_path)):
        assert run_job(command, programs, tmp_path) == EXPECTED


def test_no_hint_or_page_claims_that_relight_is_on_pypi() -> None:
    """Until it is, hints and pages describe what works from a clone or a wheel."""
    said = re.compile(r"(?:pip|pipx|uv pip|uv tool) (?:install|run) ['\"]?relight\b(?!-)")
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"),
             *(ROOT / "examples").iterdir()]  # fmt: skip
    found = [str(path) for path in files if path.is_file() and said.search(path.read_text())]
    assert found == []


def test_install_hints_match_extras() -> None:
    """The versions are those in pyproject.toml, no matter where relight was installed from."""
    extras = {
        " ".join(f"'{each}'" for each in packages)
        for packages in PROJECT["optional-dependencies"].values()
    }
    requirement = r"'[\w-]+>=[\d.]+'"
    said = re.compile(rf"{requirement}(?: {requirement})*")
    hints = {
        str(path.relative_to(ROOT)): hint
        for path in (ROOT / "src").rglob("*.py")
        for hint in said.findall(path.read_text())
    }
    assert len(hints) >= 3
    assert {path: hint for path, hint in hints.items() if hint not in extras} == {}
