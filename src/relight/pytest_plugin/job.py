"""Runs one test on its ranks, as a `relight run` job whose workers are `rank.py`."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from relight.api.function import job_directory, job_variables, signals_held, start_agent
from relight.base import env as environment
from relight.host import system
from relight.pytest_plugin.marker import Wanted, controller
from relight.pytest_plugin.rank_reports import shortened
from relight.pytest_plugin.reports import ReportedTest, collect

_WORKER = "relight.pytest_plugin.rank"
_POLL_S = 0.1
_STACKS_S = 1.0
"""How long to wait for the other ranks' stacks after the first rank has written its stacks."""
_GRACE_S = 0.5
"""How long to wait after a failure before stopping the other ranks, because they may be about to
fail on their own.
"""
_WITH_TORCH = ("torch.distributed", "torch._dynamo")
"""DistributedDataParallel imports the second module at its first use, which takes a second."""
_OFF: dict[str, Any] = {
    "collectonly": False,
    "deselect": None,
    "dist": "no",
    "distload": False,
    "fold_skipped": True,
    "keyword": "",
    "markexpr": "",
    "maxfail": 0,
    "numprocesses": None,
    "setuponly": False,
    "setupplan": False,
    "stepwise": False,
    "trace": False,
    "tx": [],
    "usepdb": False,
    "xmlpath": None,
}
"""Options of the pytest run that are not passed to the ranks."""
_NOT_ON_RANKS = (
    "cacheprovider", "faulthandler", "junitxml", "pastebin", "stepwise", "terminal",
)  # fmt: skip
"""Plugins whose options the ranks accept, but that are inactive there."""


def run(item: pytest.Item, wanted: Wanted) -> ReportedTest:
    """Run the test on all ranks, and return their reports."""
    with job_directory() as name:
        folder = Path(name)
        (folder / "request.json").write_text(json.dumps(_request(item, wanted)))
        output = folder / "output"
        with output.open("wb") as file:
            shows = item.config.getoption("capture", "fd") == "no"
            command = _command(item.config, wanted, folder)
            agent = None
            # The test's changes apply, but not the variables of an outer job.
            variables = {"OMP_NUM_THREADS": "1", **job_variables(), **wanted.env}
            try:
                with signals_held():
                    agent = start_agent(command, variables, None if shows else file)
                _wait(agent, folder, wanted)
            finally:
                if agent is not None:
                    _end(agent)
        return collect(folder, wanted, agent.returncode, shortened(output))


def _wait(agent: "subprocess.Popen[bytes]", folder: Path, wanted: Wanted) -> None:
    """Wait until the job ends, or until the ranks have written their stacks after a timeout."""
    until = float("inf")
    while time.monotonic() < until and not system.ends_within(agent, _POLL_S):
        stacks = sum(path.stat().st_size > 0 for path in folder.glob("stacks.*"))
        if stacks == wanted.world_size:
            return
        if stacks:
            until = min(until, time.monotonic() + _STACKS_S)


def _end(agent: "subprocess.Popen[bytes]") -> None:
    if agent.poll() is None:
        agent.send_signal(signal.SIGTERM)
    try:
        agent.wait(10 * _GRACE_S)
    except subprocess.TimeoutExpired:
        agent.kill()  # its workers exit with it
        agent.wait()


def _command(config: pytest.Config, wanted: Wanted, folder: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "relight", "run", "--standalone"),
        f"--nproc-per-node={wanted.world_size}",
        f"--shutdown-timeout={_GRACE_S}",
        *warm_flags(config),
        *("-m", _WORKER, str(folder)),
    ]


def warm_flags(config: pytest.Config) -> list[str]:
    """Return the flags that preload the installed modules that this process has imported, and that
    keep them loaded for the next test. The list is empty on macOS or if RELIGHT_PRELOAD is set.
    """
    variables = environment.read().variables
    if sys.platform != "linux" or variables.get("RELIGHT_PRELOAD"):
        return []
    tops = {name.partition(".")[0] for name in list(sys.modules) if not name.startswith("_")}
    names = ["pytest", *(name for name in sorted(tops - {"pytest"}) if _is_installed(name))]
    names += _WITH_TORCH if "torch" in names else ()
    names += [name for name in _pytest_modules(config) if name not in names]
    flags = [f"--preload={','.join(names)}"] if names else []
    if not variables.get("RELIGHT_KEEP_WARM"):
        flags.append(f"--keep-warm=while:{controller()}")
    return flags


def _pytest_modules(config: pytest.Config) -> list[str]:
    """Return the modules of pytest and of the installed pytest plugins that are in use."""
    names = [name for name in list(sys.modules) if name.startswith("_pytest.") or name == "pdb"]
    return names + [name for name in _plugins(config) if name.partition(".")[0] != "relight"]


def _plugins(config: pytest.Config) -> list[str]:
    """Return the modules of the installed pytest plugins that are in use."""
    found = [plugin for plugin, _ in config.pluginmanager.list_plugin_distinfo()]
    return [plugin.__name__ for plugin in found if isinstance(plugin, ModuleType)]


def _is_installed(name: str) -> bool:
    path = getattr(sys.modules.get(name), "__dict__", {}).get("__file__")
    return (
        isinstance(path, str)
        and f"-packages{os.sep}" in path
        and name.isidentifier()
        and name not in ("relight", "sitecustomize", "usercustomize")
    )


def _request(item: pytest.Item, wanted: Wanted) -> dict[str, Any]:
    """Return the request that makes the ranks run this test in the same way as this process
    would.
    """
    config = item.config
    options = {k: v for k, v in vars(config.option).items() if _is_plain(v)} | _OFF
    options["inifilename"] = str(config.inipath) if config.inipath else None
    options["rootdir"] = str(config.rootpath)
    options["basetemp"] = None
    return {
        "options": options,
        "nodeid": item.nodeid,
        "path": str(item.path),
        "directory": str(config.invocation_params.dir),
        "sys_path": sys.path,
        "backend": wanted.backend,
        "init": wanted.init,
        "timeout_s": wanted.timeout_s,
        "modules": _pytest_modules(config),
        "plugins": [name for name in _plugins(config) if not name.startswith("pytest_cov.")],
        "blocked": _NOT_ON_RANKS,
        "coverage": _coverage(),
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    return value is None or isinstance(value, (str, int, float, bool))


def _coverage() -> Mapping[str, Any] | None:
    """Return the arguments of `Coverage` for the ranks if coverage is measuring this process, or
    None otherwise.
    """
    coverage = sys.modules.get("coverage")
    current = coverage and coverage.Coverage.current()
    if not current:
        return None
    names = ("branch", "source", "include", "omit", "data_file")
    settings = {name: current.get_option(f"run:{name}") for name in names}
    settings["data_file"] = os.path.abspath(current.get_data().base_filename())
    settings["config_file"] = getattr(current.config, "config_file", None) or False
    return settings
