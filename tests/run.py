"""Run the test suite: `python -m tests.run [--quick] [--retry]`.

Everything that is not marked `long` runs, and some process tests also on a Linux that imitates
macOS.
`--quick` runs only the pure tests. With `--retry`, as in CI, failed tests run again, alone and one
at a time. A test that passes then is flaky. This is a bug, but not in the current change. With
more than `MAX_FLAKY` flaky tests, the run fails.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, NamedTuple

import pytest
from tests import pure

ROOT = Path(__file__).resolve().parent.parent
CACHES = ROOT / ".build"
MAX_FLAKY = 3


class Suite(NamedTuple):
    """One invocation of pytest, with its own cache in which pytest records failures."""

    name: str
    arguments: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def cache(self) -> Path:
        """The directory of pytest's cache."""
        return CACHES / f"pytest-{self.name}"

    def start(self, *extra: str, output: IO[bytes] | None = None) -> "subprocess.Popen[bytes]":
        """Start pytest with these arguments; its output goes to a file or to the console."""
        command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={self.cache}", *extra]
        environment = {**os.environ, **dict(self.variables)}
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output)

    def failed(self) -> list[str]:
        """Return the tests that failed the last time they ran."""
        path = self.cache / "v" / "cache" / "lastfailed"
        return sorted(json.loads(path.read_text())) if path.exists() else []


# Most tests spend most of their time waiting. The tests in one file stay together, because they
# share servers; tests/conftest.py determines the order of the files.
BY_FILE = ("--dist", "loadfile", "--no-loadscope-reorder")
ALL = (
    Suite("all", ("-n", "8", *BY_FILE, "-m", "not long")),
    Suite(
        "portable",
        (
            *("-n", "2", *BY_FILE),
            "-m",
            "not slow and not long",
            "tests/test_orphans.py",
            "tests/test_signals.py",
        ),
        (("RELIGHT_TESTS", "portable"),),
    ),
)
QUICK = (Suite("quick", ("-n", "2", *BY_FILE, "-m", "pure", *pure.PATHS)),)


def compile_all(paths: tuple[str, ...] = ("tests",)) -> None:
    """Compile relight and the tests below these paths, even if PYTHONDONTWRITEBYTECODE is set:
    otherwise, each agent would compile relight, and each pytest worker would compile all tests.
    """
    python = (sys.executable, "-m")
    subprocess.run([*python, "compileall", "-q", "-j", "0", "src"], cwd=ROOT, check=False)
    below = tuple(str(ROOT / path) for path in paths)
    files = [
        file
        for file in sorted(ROOT.glob("tests/**/test_*.py"))
        if str(file).startswith(below) and not is_compiled(file)
    ]
    command = (*python, "pytest", "--collect-only", "-q", "-p", "no:cacheprovider")
    halves = [
        subprocess.Popen(
            [*command, *half], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
        )
        for half in (files[::2], files[1::2])
        if half
    ]  # fmt: skip
    for process in halves:
        process.wait()  # errors reappear when the tests run


def is_compiled(file: Path) -> bool:
    """Return whether pytest has compiled a test file since it was last changed."""
    name = importlib.util.cache_from_source(str(file)).removesuffix(".pyc")
    compiled = Path(f"{name}-pytest-{pytest.__version__}.pyc")
    return compiled.exists() and compiled.stat().st_mtime > file.stat().st_mtime


def run(suites: tuple[Suite, ...], *, retry: bool) -> int:
    """Run all suites at the same time, and return the exit code of the first failed one. While the
    first runs, the output of the others is kept in files.
    """
    code, flaky = 0, list[str]()
    started = []
    for suite in suites:
        output = tempfile.TemporaryFile() if started else None
        process = suite.start("--cache-clear", *suite.arguments, output=output)
        started.append((suite, process, output))
    for suite, process, output in started:
        this = process.wait()
        if output is not None:
            output.seek(0)
            print(output.read().decode(errors="replace"), flush=True)
            output.close()
        failed = suite.failed()
        if this and failed and retry:
            print(f"{len(failed)} failed; again, one at a time", flush=True)
            this = suite.start("--last-failed", *suite.arguments, "-n", "0").wait()
            flaky += sorted({*failed} - {*suite.failed()})
        code = code or this
    for test in flaky:
        print(f"FLAKY: {test}")
    if len(flaky) > MAX_FLAKY:
        print(f"{len(flaky)} flaky tests; at most {MAX_FLAKY} are tolerated")
        code = code or 1
    return code


def main() -> int:
    """Run the suites selected on the command line."""
    summary = str(__doc__).partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m tests.run", description=summary)
    parser.add_argument("--quick", action="store_true", help="pure tests only")
    parser.add_argument("--retry", action="store_true", help="run failed tests again, alone")
    options = parser.parse_args()
    compile_all(pure.PATHS if options.quick else ("tests",))
    return run(QUICK if options.quick else ALL, retry=options.retry)


if __name__ == "__main__":
    sys.exit(main())
