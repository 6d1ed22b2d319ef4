"""The variables that each job has, whatever its component says: who it is, for trackers and more.

Each has TorchX's name and, with the same value but for the handle, relight's. RELIGHT_REPLICA_ID,
which has no counterpart there, tells an agent the number of its replica.
"""

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from relight.errors import UsageError
from relight.job import macros
from relight.job.app import AppDef
from relight.job.handles import SESSION

if TYPE_CHECKING:
    from relight.runner.runner import Runner

_TORCHX_SESSION = "torchx"
_session_id = ""


def with_variables(
    app: AppDef, scheduler: str, session: str, parent_run_id: str, runner: "Runner"
) -> AppDef:
    """Return the app with these variables in each role.

    Args:
        app: is not changed.
        scheduler: the name that is in the handle.
        session: of the handle.
        parent_run_id: of the run that this one is part of, or empty.
        runner: its settings say which trackers there are, and before them its environment, which
            may know the parent, too.

    Raises:
        UsageError: a tracker has no name that can be part of a variable's.
    """
    env = runner.env
    foreign = _TORCHX_SESSION if session == SESSION else session
    common = {
        "TORCHX_JOB_ID": f"{scheduler}://{foreign}/{macros.app_id}",
        "TORCHX_INTERNAL_SESSION_ID": env.get("TORCHX_INTERNAL_SESSION_ID") or _own_session(),
    }
    parent = parent_run_id or env.get("RELIGHT_PARENT_RUN_ID", env.get("TORCHX_PARENT_RUN_ID"))
    if parent:
        common["TORCHX_PARENT_RUN_ID"] = parent
    common |= _trackers(runner)
    roles = []
    for role in app.roles:
        variables = {**role.env, **common}
        ours = {
            "RELIGHT_" + name.removeprefix("TORCHX_"): value
            for name, value in variables.items()
            if name in common or name.startswith("TORCHX_TRACKING_")
        }
        ours["RELIGHT_JOB_ID"] = f"{scheduler}://{session}/{macros.app_id}"
        ours["RELIGHT_REPLICA_ID"] = macros.replica_id  # nodes are numbered as replicas are
        roles.append(replace(role, env={**variables, **ours}))
    return replace(app, roles=tuple(roles))


def _own_session() -> str:
    global _session_id
    _session_id = _session_id or os.urandom(16).hex()
    return _session_id


def _trackers(runner: "Runner") -> dict[str, str]:
    """Return what says which trackers there are: those of the settings, or of the environment."""
    said = runner.env.get("TORCHX_TRACKERS")
    where = f"TORCHX_TRACKERS={said}" if said else "the settings"
    trackers = said.split(",") if said else list(runner.settings.section("torchx:tracker"))
    if not trackers:
        return {}
    found = {"TORCHX_TRACKERS": ",".join(trackers)}
    for name in trackers:
        if not name.isidentifier():
            raise UsageError(f"{where} has a tracker named {name!r}: expected a word")
        variable = f"TORCHX_TRACKER_{name.upper()}_CONFIG"
        config = runner.settings.section(f"tracker:{name}").get("config", "")
        config = runner.env.variables.get(variable, config)
        if config:
            found[variable] = config
    return found
