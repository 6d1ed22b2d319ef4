"""The pytest plugin: `@pytest.mark.distributed(world_size=2)` runs a test on several ranks.

    @pytest.mark.distributed(world_size=2)
    def test_all_reduce(tmp_path):
        tensor = torch.ones(1)
        torch.distributed.all_reduce(tensor)
        assert tensor.item() == 2

pytest collects the test and evaluates its marks as usual. Instead of setting up its fixtures, the
plugin starts a job in which each worker runs this one test, including its fixtures (`rank.py`).
Each phase of the test (setup, call, teardown) is then reported with the same outcome (passed,
failed or skipped) as on the ranks.

The fixture `relight_sandbox` runs a script on several virtual hosts and injects faults
(`sandbox.py`).

If relight is installed, this file is loaded in every pytest run. It therefore imports the rest of
relight only for tests that have the mark.
"""

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from relight.pytest_plugin.constants import MARK, TIMEOUT

if TYPE_CHECKING:
    from relight.pytest_plugin.sandbox import SandboxRunner

ON_RANK = "relight-rank"
"""The name of the plugin that is registered only on ranks."""
DEFAULT_TIMEOUT_S = 60.0
_HELP = (
    f"{MARK}(world_size=2, backend=None, init=True, timeout=None, env=None): run the test on "
    "world_size ranks of this machine, with its own fixtures on each. The default process group of "
    "torch.distributed is initialized with `backend` (nccl if there is a GPU for each rank, else "
    "gloo), unless init=False. After `timeout` seconds the stacks of all ranks are reported. `env` "
    "has more variables for the ranks."
)
_outcome = pytest.StashKey[Any]()  # a reports.Outcome, which is imported late


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the time limit setting."""
    parser.addini(
        TIMEOUT,
        f"default time limit, in seconds, of a test with the mark {MARK}",
        default=str(DEFAULT_TIMEOUT_S),
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", _HELP)


@pytest.fixture
def relight_sandbox(tmp_path: Path) -> "SandboxRunner":
    """Run a script on several virtual hosts on this machine, and inject faults
    (docs/sandbox.md).
    """
    from relight.pytest_plugin import sandbox

    if why := sandbox.unavailable():
        pytest.skip(why)
    return sandbox.SandboxRunner(tmp_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """After its marks have been evaluated, run the test on its ranks, and raise the outcome of
    their setup phase.
    """
    __tracebackhide__ = True
    mark = item.get_closest_marker(MARK)
    shows_only = item.config.getoption("setuponly", False)  # true for --setup-plan as well
    if mark is None or shows_only or item.config.pluginmanager.has_plugin(ON_RANK):
        return (yield)
    from relight.pytest_plugin import job, marker

    wanted = marker.read(item, mark)
    item.fixturenames = []  # type: ignore[attr-defined]  # the ranks set them up
    result = yield
    item.stash[_outcome] = outcome = job.run(item, wanted)
    outcome.warn(item)
    outcome.replay("setup")
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Raise the outcome that the test function had on the ranks, instead of calling the function
    here.
    """
    outcome = pyfuncitem.stash.get(_outcome, None)
    if outcome is None:
        return None
    outcome.replay("call")
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """Raise the outcome of the ranks' teardown phase."""
    result = yield
    if _outcome in item.stash:
        item.stash[_outcome].replay("teardown")
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Forward the ranks' reports."""
    report = yield
    if _outcome in item.stash:
        item.stash[_outcome].complete(report, call)
    return report
