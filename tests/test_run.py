"""In CI, failed tests run again, and those that pass then are reported as flaky. Tests are compiled
only once.
"""

import os
from pathlib import Path

import pure
import pytest
import run

FLAKY = """
import pathlib, pytest

@pytest.mark.parametrize("number", range({count}))
def test_flaky(number, request):
    before = pathlib.Path(__file__).with_name(f"ran{{number}}")
    if not before.exists():
        before.touch()
        pytest.fail("the first time")
"""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> run.Suite:
    """A suite that runs the tests in a directory, without this project's own configuration."""
    monkeypatch.setattr(run, "CACHES", tmp_path / "caches")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p xdist")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setattr(run, "ROOT", tmp_path)
    return run.Suite("own", ("-c", str(tmp_path / "pytest.ini"), str(tmp_path)))


def write(suite: run.Suite, text: str) -> None:
    Path(suite.arguments[-1], "test_own.py").write_text(text)


def test_flaky_test_counts_as_passed_and_is_reported(
    suite: run.Suite, capfd: pytest.CaptureFixture[str]
) -> None:
    write(suite, FLAKY.format(count=1))
    assert run.run((suite,), retry=True) == 0
    flaky = [line for line in capfd.readouterr().out.splitlines() if line.startswith("FLAKY: ")]
    assert len(flaky) == 1
    assert flaky[0].endswith("test_own.py::test_flaky[0]")


def test_test_that_fails_twice_fails_test_run(suite: run.Suite) -> None:
    write(suite, FLAKY.format(count=1) + "\ndef test_broken():\n    assert False\n")
    assert run.run((suite,), retry=True) == 1


def test_too_many_flaky_tests_fail_test_run(
    suite: run.Suite, capfd: pytest.CaptureFixture[str]
) -> None:
    write(suite, FLAKY.format(count=run.MAX_FLAKY + 1))
    assert run.run((suite,), retry=True) == 1
    assert "4 flaky tests; at most 3 are tolerated" in capfd.readouterr().out


def test_failed_tests_are_not_retried_without_flag(suite: run.Suite) -> None:
    write(suite, FLAKY.format(count=1))
    assert run.run((suite,), retry=False) == 1


def test_test_that_exits_its_process_counts_as_failed(suite: run.Suite) -> None:
    write(suite, "import os\ndef test_exits():\n    os._exit(7)\n")
    parallel = suite._replace(arguments=("-n", "1", *suite.arguments))
    assert run.run((parallel,), retry=True) != 0


def test_all_test_suites_run_despite_failures(suite: run.Suite, tmp_path: Path) -> None:
    write(suite, "def test_broken():\n    assert False\n")
    other = tmp_path / "other"
    other.mkdir()
    (other / "test_other.py").write_text(
        "def test_ran(request):\n    open(__file__ + '.ran', 'w').close()\n"
    )
    later = suite._replace(name="later", arguments=(*suite.arguments[:2], str(other)))
    assert run.run((suite._replace(arguments=(*suite.arguments, "--ignore", str(other))), later),
                   retry=True) == 1  # fmt: skip
    assert (other / "test_other.py.ran").exists()


def test_tests_and_helpers_are_compiled_before_test_run(
    suite: run.Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del suite
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    tests = tmp_path / "tests"
    tests.mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "product.py").touch()
    (tests / "helper.py").touch()
    (tests / "test_own.py").write_text("import helper\n")
    run.compile_all()
    compiled = {path.name.partition(".")[0] for path in tmp_path.rglob("*.pyc")}
    assert compiled == {"product", "helper", "test_own"}
    changed = (tests / "test_own.py").stat().st_mtime + 10
    assert run.is_compiled(tests / "test_own.py")
    os.utime(tests / "test_own.py", (changed, changed))
    assert not run.is_compiled(tests / "test_own.py")


def test_paths_of_quick_tests_exist() -> None:
    """Pytest runs nothing if one of them is missing."""
    assert [path for path in pure.PATHS if not (run.ROOT / path).exists()] == []
