"""Adds environment variables that identify the job, for trackers and other tools.

Each variable is set under both TorchX's name and relight's, with the same value. The only exception
is the handle, whose value differs between the two names. RELIGHT_REPLICA_ID, the agent's replica
number, doesn't have a counterpart in TorchX.
"""

import os
from collections.abc import Mapping
from dataclasses import replace

from relight.base import trackers as names
from relight.base.env import Environment
from relight.base.errors import UsageError
from relight.health import bad_nodes
from relight.job import macros
from relight.job.app import NOTHING, AppDef
from relight.job.handles import SESSION
from relight.runner.settings import ConfigFile

_session_id = ""


def with_job_env(
    app: AppDef,
    scheduler: str,
    session: str,
    parent_run_id: str,
    env: Environment,
    settings: ConfigFile,
    more: Mapping[str, str] = NOTHING,
) -> AppDef:
    """Return the app with the variables that identify the job added to each role.

    Args:
        app: the app (not modified).
        scheduler: the scheduler's name in the handle.
        session: the session in the handle.
        parent_run_id: the parent run's id, or empty.
        env: the environment. It may specify the parent run and the trackers.
        settings: the settings. They specify the trackers if the environment does not.
        more: more variables, which override the roles' own.

    Raises:
        UsageError: if a tracker's name can't be part of a variable name.
    """
    foreign = names.SESSION if session == SESSION else session
    common = {
        names.JOB_ID: f"{scheduler}://{foreign}/{macros.app_id}",
        "TORCHX_INTERNAL_SESSION_ID": env.get("TORCHX_INTERNAL_SESSION_ID") or _own_session(),
    }
    parent = parent_run_id or env.get("RELIGHT_PARENT_RUN_ID", env.get("TORCHX_PARENT_RUN_ID"))
    if parent:
        common["TORCHX_PARENT_RUN_ID"] = parent
    common |= trackers(env, settings)
    place = bad_nodes.directory(env, settings.site)
    noted = {bad_nodes.FLAG.variable: f"{place.path},{place.expiry_s:.0f}s"} if place else {}
    roles = []
    for role in app.roles:
        variables = {**noted, **role.env, **common}
        ours = {
            "RELIGHT_" + name.removeprefix("TORCHX_"): value
            for name, value in variables.items()
            if name in common or name.startswith("TORCHX_TRACKING_")
        }
        ours["RELIGHT_JOB_ID"] = f"{scheduler}://{session}/{macros.app_id}"
        ours["RELIGHT_REPLICA_ID"] = macros.replica_id  # also the number of the node
        roles.append(replace(role, env={**variables, **ours, **more}))
    return replace(app, roles=roles)


def _own_session() -> str:
    global _session_id
    _session_id = _session_id or os.urandom(16).hex()
    return _session_id


def trackers(env: Environment, settings: ConfigFile) -> dict[str, str]:
    """Return the variables that configure trackers, from the environment or the settings.

    Raises:
        UsageError: if a tracker's name can't be part of a variable name.
    """
    said = env.get(names.TRACKERS)
    where = f"{names.TRACKERS}={said}" if said else "the settings"
    every = said.split(",") if said else list(settings.section("torchx:tracker"))
    configs = {
        name: env.variables.get(
            names.config_variable(name), settings.section(f"tracker:{name}").get("config", "")
        )
        for name in every
    }
    try:
        return names.variables(configs)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
