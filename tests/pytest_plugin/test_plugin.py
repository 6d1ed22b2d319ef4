"""`@pytest.mark.distributed`: what pytest users see of a test that runs on several ranks."""

import os
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, clean_environment, long

from relight.pytest_plugin.marker import Wanted
from relight.pytest_plugin.reports import ReportedTest

pytest_plugins = ["pytester"]
Run = Callable[..., pytest.RunResult]
HEAD = """
import os, pytest, signal, sys, time
RANK = os.environ.get("RANK")
two = pytest.mark.distributed(world_size=2, init=False)

def meet(place):  # when one rank has failed, slower ones are stopped
    job, ranks = os.environ["TORCHELASTIC_RUN_ID"], range(int(os.environ["WORLD_SIZE"]))
    names = [f"{job}.{place}.{rank}" for rank in ranks]
    open(names[int(RANK)], "w").close()
    while not all(map(os.path.exists, names)):
        time.sleep(0.01)

if RANK is not None:
    meet("module")
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run pytest on a file with these tests. By default, other installed plug-ins are disabled,
    because importing all of them takes longer than the tests.
    """
    for name in os.environ.keys() - clean_environment().keys():
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(text: str, *arguments: str, has_all_plugins: bool = False) -> pytest.RunResult:
        pytester.makepyfile(test_x=HEAD + text)
        if not has_all_plugins:
            monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
            arguments = ("-p", "relight.pytest_plugin", *arguments)
        return pytester.runpytest_subprocess(*arguments, timeout=LIMIT_S)

    return run


def output(result: pytest.RunResult) -> str:
    return result.stdout.str()


def test_distributed_test_runs_on_each_rank_with_its_own_fixtures(
    run: Run, pytester: pytest.Pytester
) -> None:
    """Fixtures of all scopes, parameters, and test classes work."""
    pytester.makeconftest("""
        import os, pytest
        @pytest.fixture(scope="session")
        def rank(): return int(os.environ["RANK"])
    """)
    result = run("""
@two
def test_fixtures(rank, tmp_path, monkeypatch, capsys):
    (tmp_path / "own").touch()
    assert len(list(tmp_path.iterdir())) == 1
    assert os.environ["WORLD_SIZE"] == "2" and rank == int(RANK)
    print("x")
    assert capsys.readouterr().out == "x\\n"

@two
@pytest.mark.parametrize("n", ["a::b", "[c]"])
def test_parameters(n):
    assert n in ("a::b", "[c]")

class TestClass:
    def setup_method(self):
        self.x = RANK
    @two
    def test_method(self):
        assert self.x == os.environ["RANK"]

def test_without_distributed_mark():
    assert RANK is None
""")
    result.assert_outcomes(passed=5)


def test_assertion_that_fails_on_one_rank_is_shown_in_full(run: Run) -> None:
    """The report has pytest's details, the rank, and each rank's output."""
    result = run("""
@two
def test_it():
    print("printed by", RANK)
    meet("test")
    found = {"rank": int(RANK)}
    assert found == {"rank": 0}
""")
    result.assert_outcomes(failed=1)
    text = output(result)
    assert "- rank 1 of 2 -" in text
    assert "AssertionError: assert {'rank': 1} == {'rank': 0}" in text
    assert "{'rank': 1} != {'rank': 0}" in text
    assert "Captured stdout call (rank 0)" in text and "printed by 0" in text
    assert "FAILED" in text.splitlines()[-2] and "AssertionError" in text.splitlines()[-2]


def test_identical_failures_are_shown_once(run: Run) -> None:
    result = run("""
@pytest.mark.distributed(world_size=3, init=False)
def test_it():
    meet("test")
    assert [1, 2] == [1, 3]
""")
    result.assert_outcomes(failed=1)
    assert output(result).count("At index 1 diff: 2 != 3") == 1
    assert "- ranks 0, 1, 2 of 3 -" in output(result)


def test_skip_and_xfail_marks_work(run: Run) -> None:
    """Skipped tests start no processes."""
    result = run(
        """
@two
@pytest.mark.skipif(True, reason="not here")
def test_skipped(): open("started", "w")

@two
def test_skips_itself(): pytest.skip("not now")

@two
@pytest.mark.xfail(raises=ValueError)
def test_fails_as_expected(): raise ValueError

@two
@pytest.mark.xfail(raises=ValueError)
def test_fails_otherwise(): raise KeyError

@two
@pytest.mark.xfail(strict=True)
def test_passes_unexpectedly(): pass

@two
@pytest.mark.xfail
def test_passes_although(): pass

@pytest.fixture
def broken(): raise OSError("no fixture")

@two
def test_needs_it(broken): pass

@pytest.fixture
def leaves():
    yield
    raise OSError("no teardown")

@two
def test_leaves(leaves): pass

def test_no_process_was_started(): assert not os.path.exists("started")
""",
        "-rs",
    )
    result.assert_outcomes(passed=2, skipped=2, xfailed=1, failed=2, xpassed=1, errors=2)
    text = output(result)
    assert "not here" in text and "not now" in text
    assert "ERROR at setup of test_needs_it" in text and "no fixture" in text
    assert "ERROR at teardown of test_leaves" in text and "no teardown" in text


def test_timeout_shows_stacks_of_all_ranks(run: Run) -> None:
    result = run("""
def wait_here(): time.sleep(1000)
def wait_there(): time.sleep(1000)

@pytest.mark.distributed(world_size=2, init=False, timeout=1)
def test_it():
    wait_here() if RANK == "0" else wait_there()
""")
    result.assert_outcomes(failed=1)
    text = output(result)
    assert "ranks 0, 1 had not finished after 1 s" in text
    assert " in wait_here\n" in text and " in wait_there\n" in text
    assert "/pluggy/" not in text


def test_distributed_test_fails_if_a_rank_exits(run: Run) -> None:
    """The rank's last output is shown, and the summary names the rank."""
    result = run("""
def last_words(of):
    os.write(2, f"last words of {of}".encode())
    print("last print of", of)

@two
def test_kill():
    if RANK == "1":
        last_words("kill")
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)

@two
def test_7():
    if RANK == "1":
        last_words("7")
        os._exit(7)
    time.sleep(1000)

@two
def test_0():
    if RANK == "1":
        last_words("0")
        os._exit(0)
""")
    result.assert_outcomes(failed=3)
    text = output(result)
    for test, said in {
        "kill": "was killed by SIGKILL",
        "7": "exited with code 7",
        "0": "exited with code 0 before the end of the test",
    }.items():
        assert f"- rank 1 {said}" in text
        assert f"last words of {test}" in text and f"last print of {test}" in text
        assert f"FAILED test_x.py::test_{test} - rank 1 {said}"[:60] in text
    assert text.count("printed to stderr by rank 1") == 3
    assert text.count("printed to stdout by rank 1") == 3
    assert "it printed nothing" not in text


@pytest.mark.parametrize(
    ("line", "ranks"),
    [
        ("rank 1 raised ValueError: bad", {1}),
        ("ranks 0-1, 3 raised ValueError: bad", {0, 1, 3}),
        ("probably rank 1: it was in read (data.py:41) when rank 0 raised E", {1}),
        ("perhaps ranks 2-3 hang in read (data.py:41)", {2, 3}),
        ("no rank appears to have failed on its own", set()),
    ],
)
def test_blamed_ranks_are_read_from_the_report(line: str, ranks: set[int]) -> None:
    wanted = Wanted(4, "", False, 0, {})
    assert ReportedTest([], wanted, 1, f"relight: {line}")._blamed() == ranks


def test_rank_still_starting_is_not_blamed(run: Run) -> None:
    """The test fails in the call phase, and not in the setup that another rank didn't reach."""
    result = run("""
if RANK == "0":
    time.sleep(1000)

one_second = pytest.mark.distributed(world_size=2, init=False, timeout=1)

@one_second
def test_exits():
    os._exit(7)

@one_second
def test_hangs():
    time.sleep(1000)
""")
    result.assert_outcomes(failed=2)
    assert "rank 1 exited with code 7" in output(result)
    assert "had not finished after 1 s" in output(result)


@pytest.mark.long
def test_distributed_test_that_ends_after_its_timeout_fails(run: Run) -> None:
    """The launcher's signal may end the hanging call, or the call may end slightly later."""
    result = run("""
import ctypes
libc = ctypes.CDLL(None)

@pytest.mark.distributed(world_size=2, init=False, timeout=4)
@pytest.mark.parametrize(
    "waits", [signal.pause, lambda: time.sleep(4.5), lambda: libc.sleep(1000)], ids="abc"
)
def test_it(waits):
    print("it hangs")
    waits()
""")
    result.assert_outcomes(failed=3)
    assert output(result).count("ranks 0, 1 had not finished after 4 s") >= 3
    assert output(result).count("it hangs") >= 3


def test_skip_on_some_ranks_reports_reason_and_line(run: Run) -> None:
    """If only some ranks skip a test, it fails, because the others can't check its promise."""
    result = run(
        """
@two
def test_skips():
    pytest.skip("not today")
@two
def test_needs():
    pytest.importorskip("nomod")
@two
def test_partly():
    if RANK == "1":
        pytest.skip("not here")
""",
        "-rs",
    )
    result.assert_outcomes(skipped=2, failed=1)
    before = HEAD.count("\n")
    assert f"SKIPPED [1] test_x.py:{before + 3}: not today" in output(result)
    assert f"test_x.py:{before + 6}: could not import 'nomod'" in output(result)
    assert "only rank 1 skipped the test: not here" in output(result)


@pytest.mark.parametrize(
    "end", ["pytest.exit('stop all')", long("raise KeyboardInterrupt('stop all')")]
)
def test_pytest_exit_on_one_rank_ends_the_run(run: Run, end: str) -> None:
    result = run(f"""
@two
def test_it():
    {end}

def test_after(): pass
""")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert "stop all" in output(result)
    assert "passed" not in output(result)


def test_warnings_from_ranks_are_reported_once(run: Run) -> None:
    result = run(
        """
import warnings

class OwnWarning(UserWarning): pass

@two
def test_it():
    warnings.warn("on all ranks")
    warnings.warn("own", OwnWarning)
""",
        has_all_plugins=True,
    )
    result.assert_outcomes(passed=1, warnings=2)
    assert output(result).count("UserWarning: on all ranks") == 1
    assert "OwnWarning: own" in output(result)


def test_endless_output_from_a_rank_is_truncated(run: Run) -> None:
    result = run("""
@two
def test_it():
    print("the beginning")
    for _ in range(200):
        print("x" * 10_000)
    print("the end")
    assert RANK == "x"
""")
    result.assert_outcomes(failed=1)
    text = output(result)
    assert "the beginning" in text and "the end" in text and "characters are left out" in text
    assert len(text) < 2_000_000


def test_setup_plan_option_starts_no_ranks(run: Run) -> None:
    """Neither --setup-plan nor --setup-only starts any."""
    text = """
@pytest.fixture
def broken(): raise RuntimeError("broken it is")

@two
def test_it(broken): pass
"""
    result = run(text, "--setup-plan")
    assert result.ret == 0
    assert "SETUP    F broken" in output(result)
    result = run(text)
    result.assert_outcomes(errors=1)
    assert "pytest_runtest_setup" not in output(result)  # the plug-in's own function
    assert "ERROR test_x.py::test_it - RuntimeError: broken it is" in output(result)
    result = run(text.replace("broken()", "another()"))
    assert "fixture 'broken' not found" in output(result).splitlines()[-2]


def test_rank_waiting_for_a_failed_rank_is_stopped_immediately(run: Run) -> None:
    """The report shows the assertion, not its effect on the other rank."""
    result = run("""
@two
def test_it():
    if RANK == "0":
        time.sleep(1000)
    assert RANK == "0", "this is why"
""")
    result.assert_outcomes(failed=1)
    assert "this is why" in output(result)
    assert "had not finished" not in output(result)


def test_error_shows_the_invalid_mark_argument(run: Run) -> None:
    wrong = {
        "word_size=2": "no argument word_size; did you mean world_size?",
        "world_size=0": "world_size=0: expected the number of ranks, at least 1",
        "world_size=True": "world_size=True: expected",
        "backend='glo'": "backend=glo: unknown; did you mean gloo?",
        "init=1": "init=1: expected True or False",
        "timeout='soon'": "timeout='soon': expected seconds",
        "env={'A': 1}": "expected a dict of strings",
        "2, 'gloo'": "takes world_size and names, not 'gloo'",
    }
    result = run("".join(f"""
@pytest.mark.distributed({arguments})
def test_{number}(): pass
""" for number, arguments in enumerate(wrong)))  # fmt: skip
    result.assert_outcomes(errors=len(wrong))
    for said in wrong.values():
        assert said in output(result)
    assert "Traceback" not in output(result)


def test_async_and_unittest_tests_are_rejected(run: Run) -> None:
    result = run("""
import unittest
@two
class TestOld(unittest.TestCase):
    def test_it(self): pass
@two
async def test_async(): pass
""")
    result.assert_outcomes(errors=2)
    assert "methods of classes other than TestCase" in output(result)
    assert "not for async functions" in output(result)


def test_distributed_mark_is_registered_and_documented(run: Run) -> None:
    """The plug-in need not be named anywhere."""
    strict = "--strict-markers", "--strict-config"
    result = run("@two\ndef test_it(): pass\n", *strict, has_all_plugins=True)
    result.assert_outcomes(passed=1)
    assert "@pytest.mark.distributed(world_size=2" in output(run("", "--markers"))


def test_xdist_runs_distributed_tests_in_parallel(run: Run) -> None:
    """The reports are complete."""
    result = run(
        """
@two
@pytest.mark.parametrize("n", range(4))
def test_it(n):
    meet("test")
    assert n != 3, f"rank {RANK} says no"
""",
        *("-p", "xdist.plugin", "-n", "2"),
    )
    result.assert_outcomes(passed=3, failed=1)
    assert "rank 0 says no" in output(result) and "rank 1 says no" in output(result)


def test_coverage_includes_code_run_on_ranks(run: Run, pytester: pytest.Pytester) -> None:
    """The ranks' code is measured by pytest-cov in the same run."""
    pytester.makepyfile(
        code="""
        def f(rank):
            if rank == "0":
                return "zero"
            return "one"
    """
    )
    result = run(
        """
import code as _; sys.modules.pop("code")
sys.path.insert(0, os.path.dirname(__file__))
import code
@two
def test_it(): assert code.f(RANK)
""",
        "--cov=code",
        "--cov-report=term-missing",
        has_all_plugins=True,
    )
    result.assert_outcomes(passed=1)
    (line,) = (line for line in output(result).splitlines() if line.startswith("code.py"))
    assert line.split()[-1] == "100%", output(result)


def test_junit_report_includes_failure_and_duration(run: Run, pytester: pytest.Pytester) -> None:
    run("@two\ndef test_it():\n    time.sleep(0.3)\n    assert RANK == '9'\n", "--junitxml=x.xml")
    case = next(ET.parse(pytester.path / "x.xml").iter("testcase"))
    failure = case.find("failure")
    assert failure is not None and "assert '0' == '9'" in (failure.text or "")
    assert float(case.attrib["time"]) > 0.3


def test_plugin_loads_no_modules_without_distributed_mark(pytester: pytest.Pytester) -> None:
    """The plug-in is installed for all projects in the environment."""
    pytester.makepyfile("""
        import sys
        def test_it():
            ours = {name for name in sys.modules if name.startswith("relight")}
            assert ours <= {
                "relight", "relight.pytest_plugin", "relight.pytest_plugin.constants"
            }, ours
            assert "torch" not in sys.modules
    """)
    pytester.runpytest_subprocess(timeout=LIMIT_S).assert_outcomes(passed=1)


def test_second_test_starts_warm_and_no_process_is_left_behind(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warm process ends with pytest."""
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))  # not another test's process
    result = run(
        """
import json, subprocess
@two
def test_one(): pass

def test_warm_process_exists():
    end = time.monotonic() + 180
    while time.monotonic() < end:
        found = json.loads(subprocess.run([sys.executable, "-m", "relight", "warm", "--json"],
                                          capture_output=True, text=True).stdout)
        if found:
            break
        time.sleep(0.1)
    print("PID", *(each["pid"] for each in found))

@two
def test_another(): assert "pytest" in sys.modules
""",
        "-s",
        "--verbose",
    )
    result.assert_outcomes(passed=3)
    (line,) = (line for line in output(result).splitlines() if "PID" in line)
    pids = [int(word) for word in line.partition("PID")[2].split() if word.isdecimal()]
    assert pids
    end = time.monotonic() + LIMIT_S
    while any(Path(f"/proc/{pid}/exe").exists() for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.needs_torch
def test_process_group_is_initialized_and_destroyed(run: Run, pytester: pytest.Pytester) -> None:
    """A machine without GPUs uses gloo; a failed collective doesn't hide the cause."""
    result = run("""
import torch, torch.distributed as dist

@pytest.mark.distributed(world_size=2)
def test_all_reduce():
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == 2 and dist.get_backend() == "gloo"

@pytest.mark.distributed(world_size=2)
def test_one_fails():
    assert dist.get_rank() == 0, "this is why"
    dist.all_reduce(torch.ones(1))

@two
def test_itself():
    assert not dist.is_initialized()
""")
    result.assert_outcomes(passed=2, failed=1)
    assert output(result).index("this is why") < output(result).index("short test summary")
