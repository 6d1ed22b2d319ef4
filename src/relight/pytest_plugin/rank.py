"""Runs one rank of a test, as a worker started by `job.py`.

The command line is `python -m relight.pytest_plugin.rank DIRECTORY`. This module runs pytest for
the one test in `request.json`, with the same options as the outer pytest run, and writes each
report as a line of JSON to `reports.RANK`. On a timeout, faulthandler writes the stacks of all
threads to `stacks.RANK`. Output is captured in `stdout.RANK` and `stderr.RANK`, which remain even
if the process is killed. As soon as the test fails on this rank, the process exits with code 1, so
that the launcher stops the other ranks, which might otherwise wait forever.
"""

import contextlib
import faulthandler
import importlib.util
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, TextIO

import pytest
from _pytest import capture
from _pytest.config import get_config

from relight.base.errors import EXIT_FAILED, EXIT_OK
from relight.pytest_plugin import ON_RANK
from relight.pytest_plugin.rank_reports import cut
from relight.worker.call import leave

_IMPORT_S = 120.0
"""Timeout for a test's imports, separate from the test's own time limit."""


class RankPlugin:
    """Initializes the process group before the test's fixtures run, and writes the test's reports.

    Args:
        reports: the path of the reports file.
        stacks: the file to which stacks are written when the time limit expires.
        request: the request from `job.py`.
    """

    def __init__(self, reports: Path, stacks: TextIO, request: Mapping[str, Any]) -> None:
        self.is_good = True
        self._reports = reports
        self._stacks = stacks
        self._request = request
        self._limit(request["timeout_s"] + _IMPORT_S)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Start the timer and initialize the process group."""
        self._limit(self._request["timeout_s"])
        if self._request["init"]:
            if importlib.util.find_spec("torch") is None:
                pytest.fail(
                    "the process group requires torch, which is not installed; use init=False to "
                    "run without it",
                    pytrace=False,
                )
            import torch.distributed as dist

            dist.init_process_group(self._request["backend"] or _backend())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Generator[None, Any, Any]:
        """Destroy the process group, except after a failure, because the other ranks may not take
        part in that case. A gloo group is not destroyed but simply ends with the process, because
        destroying it takes 20 ms, during which gloo waits for its threads.
        """
        result = yield
        if self._request["init"] and self.is_good:
            import torch.distributed as dist

            if dist.is_initialized() and dist.get_backend() != "gloo":
                dist.destroy_process_group()
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a phase's report."""
        report.sections = [(title, cut(text)) for title, text in report.sections]
        self.is_good &= report.passed or (report.skipped and not hasattr(report, "wasxfail"))
        self._write({"report": self._config.hook.pytest_report_to_serializable(
            config=self._config, report=report)})  # fmt: skip

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record why the test could not be collected."""
        if report.failed:
            self.is_good = False
            self._write({"collect": report.longreprtext})

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage) -> None:
        """Record a warning."""
        category = warning_message.category
        self._write({"warning": {
            "message": str(warning_message.message),
            "module": category.__module__,
            "category": category.__qualname__,
            "filename": warning_message.filename,
            "lineno": warning_message.lineno,
        }})  # fmt: skip

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Record why the test aborted the run with `pytest.exit` or KeyboardInterrupt."""
        self.is_good = False
        said = str(excinfo.value) or f"{excinfo.typename} on rank {os.environ['RANK']}"
        self._write({"end": said})

    def pytest_configure(self, config: pytest.Config) -> None:
        """Store the configuration for serializing reports."""
        self._config = config

    def _limit(self, seconds: float) -> None:
        """Schedule a stack dump after this many seconds."""
        if self._request["timeout_s"]:
            faulthandler.dump_traceback_later(seconds, file=self._stacks)

    def _write(self, record: dict[str, Any]) -> None:
        with self._reports.open("a") as file:
            file.write(json.dumps({"time": time.time(), **record}, default=str) + "\n")


def main(directory: str) -> None:
    """Run the test and exit."""
    signal.signal(signal.SIGTERM, lambda *_: None)  # see _GRACE_S in job.py
    folder, rank = Path(directory), os.environ["RANK"]
    request = json.loads((folder / "request.json").read_text())
    faulthandler.enable()
    os.chdir(request["directory"])
    sys.path[:] = request["sys_path"]
    sys.argv[1:] = []
    stacks = (folder / f"stacks.{rank}").open("w")
    _capture_into(folder, rank)
    plugin = RankPlugin(folder / f"reports.{rank}", stacks, request)
    coverage = _measure(request["coverage"])
    try:
        config = _configure(request)
        config.pluginmanager.register(plugin, ON_RANK)
        try:
            config.hook.pytest_cmdline_main(config=config)
        finally:
            config._ensure_unconfigure()
    finally:
        if coverage is not None:
            coverage.stop()
            coverage.save()
    leave(EXIT_OK if plugin.is_good else EXIT_FAILED)


def _capture_into(folder: Path, rank: str) -> None:
    """Make pytest capture stdout and stderr in named files (_pytest.capture, pytest 8 and 9).
    pytest truncates these files once it has reported the output.
    """
    names = [f"stderr.{rank}", f"stdout.{rank}"]
    internals: Any = capture
    temporary = internals.TemporaryFile

    def named(mode: str = "w+b", **options: Any) -> Any:
        if not names or mode != "w+b":
            return temporary(mode, **options)
        return (folder / names.pop()).open(mode, **options)

    internals.TemporaryFile = named


def _configure(request: Mapping[str, Any]) -> pytest.Config:
    """Build the part of the pytest configuration that a rank needs.

    Plugins are registered as if they came from entry points. This code neither searches for entry
    points nor rewrites the plugins' assertions, which would take 0.1 s.
    """
    for name in request["modules"]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        config = get_config(_arguments(request))
        for name in request["plugins"]:
            module = sys.modules.get(name) or importlib.import_module(name)
            if not config.pluginmanager.is_registered(module):
                config.pluginmanager.register(module, name)
        vars(config.option).update(request["options"])
        config.parse(_arguments(request), addopts=False)
        for name in request["blocked"]:
            config.pluginmanager.set_blocked(name)
    return config


def _arguments(request: Mapping[str, Any]) -> list[str]:
    """Return pytest's command line."""
    options = request["options"]
    plugins = [name for name in options.get("plugins") or () if name != "no:terminal"]
    words = [word for name in plugins for word in ("-p", name)]
    words += ["--rootdir", options["rootdir"], "-c", options["inifilename"] or os.devnull]
    _, _, rest = request["nodeid"].partition("::")
    return [*words, f"{request['path']}::{rest}"]


def _backend() -> str:
    """Return nccl and set this rank's device if there is a GPU for each rank, or return gloo."""
    import torch

    local_rank, size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if torch.cuda.is_available() and torch.cuda.device_count() >= size:
        torch.cuda.set_device(local_rank)
        return "nccl"
    return "gloo"


def _measure(settings: Mapping[str, Any] | None) -> Any:
    """Start measuring coverage. The data is written to a separate file for this process, next to
    the data file of the pytest run.
    """
    if settings is None:
        return None
    from coverage import Coverage

    measured = Coverage(data_suffix=True, **settings)
    measured.start()
    return measured


if __name__ == "__main__":
    main(sys.argv[1])
