"""The site's configuration: defaults and locked values that an administrator sets for all users.

    locked = ["hang-timeout", "keep_alive_interval", "schedulers.kubernetes.privileged"]
    [run]                      flags of `relight run`, without the dashes
    hang-timeout = "auto"
    [run.rdzv-conf]            merged key by key with `--rdzv-conf`
    keep_alive_interval = 1
    [schedulers.slurm]         options of a scheduler
    partition = "gpu"
    [components."dist.ddp"]    arguments of a component
    j = "1x8"
    [submit]                   component, scheduler and workspace for `relight submit`
    scheduler = "slurm"

The file is `config.toml` in `RELIGHT_CONFIG_DIR`, by default /etc/relight, on the machine where a
command runs. Agents read the file on their own nodes. An agent in a container without such a file
uses the flags and locks that `relight submit` has passed to it (`PASSED`). The command line,
variables, and a project's or a user's settings files take precedence over the site's values. None
of them can change a locked value. A locked flag without a value stays at relight's default. Locking
prevents mistakes but not deliberate changes, because users can set the variable.

Names that this version does not know are ignored, because the nodes of a cluster may run different
versions. `relight configure --show` lists them. `relight doctor` also reports unknown names in
`locked`.
"""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from relight.base.env import Environment
from relight.base.errors import MachineError, UsageError
from relight.base.values import parse_conf
from relight.flags.spec import FLAG_BY_NAME, Flag

DIRECTORY_VARIABLE = "RELIGHT_CONFIG_DIR"
PASSED = "RELIGHT_SITE"
"""The variable with which `relight submit` passes the site's flags to jobs in containers, as JSON
(runner/container_site).
"""
SUBMISSION_HOST = " on the submission host"
"""Follows the path of the file from which passed flags come."""
_DIRECTORY = "/etc/relight"
_FILE = "config.toml"
CONF = "rdzv-conf"
PER_JOB = frozenset(
    ("nnodes", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "node-rank", "master-addr",
     "master-port", "local-addr", "standalone", "segment", "module", "no-python", "run-path",
     "name", "help")
)  # fmt: skip
"""Flags of `relight run` that identify a single job or node. A site can't set defaults for them."""
_SECTIONS = ("run", "schedulers", "components", "submit", "locked")
_SUBMIT = ("component", "scheduler", "workspace")
_LISTS = frozenset(
    ("restart-on", "fail-on", "health-check", "signals-to-handle", "preload", "redirects", "tee",
     "local-ranks-filter", "duplicate-stdout-filters", "duplicate-stderr-filters", "on-preempt")
)  # fmt: skip
"""Flags whose value is a list, separated by commas."""


class Site(NamedTuple):
    """The content of the file.

    `run` maps the names of flags to their values, as text in the form used on the command line, and
    `conf` contains the pairs for `--rdzv-conf`. The `sections` field contains the other tables
    under the names that they have in a settings file (runner/settings). The `ignored` field
    contains the unknown names.
    """

    path: str = ""
    run: Mapping[str, str] = {}
    conf: tuple[tuple[str, str], ...] = ()
    schedulers: Mapping[str, Mapping[str, Any]] = {}
    sections: Mapping[str, Mapping[str, str]] = {}
    locked: frozenset[str] = frozenset()
    ignored: tuple[str, ...] = ()

    def locks(self, flag: str) -> bool:
        """Return whether a flag of `relight run` is locked."""
        return flag in self.locked or f"run.{flag}" in self.locked

    def locks_conf(self, key: str) -> bool:
        """Return whether a key of `--rdzv-conf` is locked."""
        names = (key, f"{CONF}.{key}", f"run.{CONF}.{key}")
        return self.locks(CONF) or any(name in self.locked for name in names)

    def locked_options(self, scheduler: str) -> frozenset[str]:
        """Return the names of a scheduler's locked options."""
        prefix = f"schedulers.{scheduler}."
        return frozenset(
            name.removeprefix(prefix) for name in self.locked if name.startswith(prefix)
        )


NO_SITE = Site()


def load(env: Environment) -> Site:
    """Return the site's configuration, or an empty configuration if the file doesn't exist.

    Raises:
        UsageError: if the variable names a directory that does not contain the file, or the flags
            that were passed to this container are malformed.
        MachineError: if the file can't be read or is malformed.
    """
    directory = env.get(DIRECTORY_VARIABLE)
    path = os.path.join(directory or _DIRECTORY, _FILE)
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        if directory:
            raise UsageError(
                f"{DIRECTORY_VARIABLE}={directory}: this directory contains no {_FILE}"
            ) from None
        passed = env.get(PASSED)
        return _passed(passed) if passed else NO_SITE
    except OSError as error:
        raise MachineError(f"can't read {path}: {error.strerror}") from None
    import tomllib  # only if there is a file, because this is on the launch path

    try:
        return _checked(path, tomllib.loads(data.decode()))
    except ValueError as error:
        raise MachineError(
            f"can't read {path}: {error}", hint="this file is maintained by your administrator"
        ) from None


def _passed(text: str) -> Site:
    import json

    try:
        content = dict(json.loads(text))
        return _checked(f"{content.pop('path', _DIRECTORY)}{SUBMISSION_HOST}", content)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{PASSED}: {error}", hint="relight submit sets it") from None


def _checked(path: str, content: Mapping[str, Any]) -> Site:
    ignored = [name for name in content if name not in _SECTIONS]
    run, conf = {}, dict[str, str]()
    for written, value in _table(content, "run").items():
        name = written.replace("_", "-")
        if name in PER_JOB:
            raise ValueError(
                f"run.{written} is specific to each job, so it can't have a default here"
            )
        if name not in FLAG_BY_NAME:
            ignored.append(f"run.{written}")
        elif name == CONF:
            conf = {key: _word(f"run.{CONF}.{key}", each) for key, each in _pairs(value).items()}
        else:
            run[name] = _flag_text(f"run.{written}", value, FLAG_BY_NAME[name])
    sections = {
        f"component:{name}": {
            key: _text(f"components.{name}.{key}", value) for key, value in table.items()
        }
        for name, table in _tables(content, "components").items()
    }
    submit = _table(content, "submit")
    # Stored under TorchX's name, so that a user's file takes precedence with either name.
    sections["cli:run"] = {key: _word(f"submit.{key}", value) for key, value in submit.items()}
    ignored += [f"submit.{key}" for key in submit if key not in _SUBMIT]
    locked = content.get("locked", [])
    if not isinstance(locked, list) or not all(isinstance(name, str) for name in locked):
        raise ValueError("locked must be a list of names")
    return Site(
        path,
        run,
        tuple(conf.items()),
        _tables(content, "schedulers"),
        sections,
        frozenset(
            name if name.startswith("schedulers.") else _flag_or_key(name) for name in locked
        ),
        tuple(ignored),
    )


def _flag_or_key(name: str) -> str:
    """Return a locked name, with dashes if it is the name of a flag. Keys of `--rdzv-conf` have
    underscores.
    """
    flag = name.removeprefix("run.").replace("_", "-")
    return flag if flag in FLAG_BY_NAME else name


def _pairs(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else dict(parse_conf(_text(f"run.{CONF}", value)))


def _table(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = content.get(name, {})
    if isinstance(table, dict):
        return table
    raise ValueError(f"{name} must be a table: [{name}]")


def _tables(content: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    tables = _table(content, name)
    return {key: _table(tables, key) for key in tables}


def _flag_text(name: str, value: Any, flag: Flag) -> str:
    """Return a flag's value in the form that a user would type on the command line."""
    if isinstance(value, list) and flag.repeats:
        return "\n".join(_word(name, each) for each in value)
    return _text(name, value) if flag.name in _LISTS else _word(name, value)


def _word(name: str, value: Any) -> str:
    if not isinstance(value, list):
        return _text(name, value)
    raise ValueError(f"{name} must be a single value, not a list")


def _text(name: str, value: Any) -> str:
    """Return a value in the form that a user would type on the command line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list) and not any(isinstance(each, (list, dict)) for each in value):
        return ",".join(_text(name, each) for each in value)
    if isinstance(value, (str, int, float)):
        return str(value)
    raise ValueError(f"the value of {name} has a type that is not valid for a flag")
