"""Pure tests, which `make quick` runs. They start no process, open no socket, and need no torch.

They are all tests below `PATHS` without a marker or fixture for such things.
"""

import sys
from collections.abc import Iterator

import pytest

PATHS = (
    "tests/cli",
    "tests/cli_jobs/test_pages.py",
    "tests/cli_jobs/test_wrong.py",
    "tests/core",
    "tests/host/test_console.py",
    "tests/host/test_devices.py",
    "tests/host/test_dumps_of_flight_recorder.py",
    "tests/host/test_facts.py",
    "tests/host/test_files.py",
    "tests/host/test_journal.py",
    "tests/host/test_learned.py",
    "tests/host/test_loop.py",
    "tests/host/test_memory.py",
    "tests/host/test_numa.py",
    "tests/host/test_readers.py",
    "tests/host/test_stacks_memory.py",
    "tests/host/test_timers.py",
    "tests/host/test_traceback_stream.py",
    "tests/host/test_unshown_output.py",
    "tests/host/test_watched_worker.py",
    "tests/host/test_worker_memory.py",
    "tests/job",
    "tests/messages",
    "tests/pages/test_pages.py",
    "tests/portable/test_portable.py",
    "tests/runner/test_injected.py",
    "tests/runner/test_lookup.py",
    "tests/runner/test_options.py",
    "tests/runner/test_settings.py",
    "tests/sight/test_last_known.py",
    "tests/sight/test_page_colours.py",
    "tests/sight/test_page_look.py",
    "tests/sight/test_status_file.py",
    "tests/test_events.py",
    "tests/test_group_put_off.py",
    "tests/test_layers.py",
    "tests/test_node.py",
    "tests/test_rdzv_conf.py",
)
MARKERS = ("long", "needs_", "processes", "slow")
FIXTURES = {"launch", "start"}
FORBIDDEN = {
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "socket.bind",
    "socket.connect",
    "subprocess.Popen",
}


def is_pure(item: pytest.Item) -> bool:
    """Return whether `make quick` runs a test."""
    file = item.nodeid.partition("::")[0]
    return (
        any(file == path or file.startswith(f"{path}/") for path in PATHS)
        and not any(mark.name.startswith(MARKERS) for mark in item.iter_markers())
        and not FIXTURES.intersection(getattr(item, "fixturenames", ()))
    )


class Guard:
    """A pytest plug-in that fails tests which are marked as pure but aren't."""

    def __init__(self) -> None:
        self._is_pure = False
        sys.addaudithook(self._audit)

    def _audit(self, event: str, _: tuple[object, ...]) -> None:
        if self._is_pure and event in FORBIDDEN:
            raise AssertionError(f"{event} in a pure test: mark it `processes`")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        """Watch the fixtures."""
        self._is_pure = item.get_closest_marker("pure") is not None
        try:
            return (yield)
        except BaseException:
            self._is_pure = False
            raise

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        """Watch the test, but not fixture teardowns, as session fixtures may be among them."""
        try:
            return (yield)
        finally:
            self._is_pure = False
