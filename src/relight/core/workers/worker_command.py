"""Computes a worker's command line and environment from just the node's `Command` and the worker's
rank.

The command line and the environment are the same as with torchrun (torch 2.13), with one exception:
`${local_rank}` is the only pattern that is replaced in arguments. Other patterns that
`string.Template` would replace, such as `$$` and `$local_rank`, are kept as they are.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from relight.base.env import Environment
from relight.base.errors import signal_name
from relight.base.values import STATUS_TOKEN, TOKEN
from relight.core.ranks import Assignment, Generation, visible_devices, worker_variables

OF_ONE_WORKER = (
    "LOCAL_RANK",
    "RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "ROLE_NAME",
    "LOCAL_WORLD_SIZE",
    "WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_ERROR_FILE",
)
"""Environment variables that differ between workers or generations."""
FLAGS = "-uXfaulthandler"
"""Interpreter options for workers: unbuffered output, and the Python stack after a crash.
Environment variables would also affect the programs that the worker starts. The options must be a
single argument, like torchrun's `-u`, because scripts and wrappers rely on the script's position in
the command line.
"""
RECOVERY = "RELIGHT_RECOVERY"
"""This variable is set if ranks can keep their processes. A rank whose collective has failed waits
this many seconds for its agent to report that another rank has failed.
"""
_MACRO = "${local_rank}"
_OF_AGENTS = (TOKEN, STATUS_TOKEN)
"""Variables that are hidden from the workers, because they contain credentials of agents and
users.
"""


class Command(NamedTuple):
    """Parameters common to all workers of this node.

    The `script` field is a path, a program (`no_python`) or a module's name (`module`).
    `run_path` contains the Python arguments for `--run-path`, which are -c and a program.
    The `local_rank_argument` field is set for `relight launch` without `--use-env`. The
    `agent_store` field is set if the agent serves MASTER_PORT.
    """

    script: str
    script_args: tuple[str, ...]
    module: bool
    no_python: bool
    env: Environment
    python: str
    run_path: tuple[str, ...]
    run_id: str
    local_rank_argument: bool
    agent_store: bool
    max_restarts: int
    signals_to_handle: tuple[int, ...]
    virtual_local_rank: bool
    threads: int
    """The value of OMP_NUM_THREADS, or 0 to leave it unchanged."""
    timer_file: str
    """The FIFO for the workers' timers, or an empty string."""
    breakpoint: Mapping[str, str]
    """The variables that make `breakpoint()` wait for relight debug."""
    recovery_notice_s: int = 0
    """The value of `RECOVERY`, or 0 if ranks can't keep their processes."""
    line_prefix: str = ""
    """The template for the prefix of tee'd lines, or an empty string for torchrun's prefix."""
    host: str = ""
    """The name of this machine, for this prefix."""
    tracking: Mapping[str, str] = {}
    """The variables that identify the run and its trackers."""


def argv(command: Command, local_rank: int) -> tuple[str, ...]:
    """Return the worker's command line."""
    first = (f"--local-rank={local_rank}",) if command.local_rank_argument else ()
    arguments = [with_local_rank(argument, local_rank) for argument in command.script_args]
    if command.no_python and not command.run_path:
        return (command.script, *first, *arguments)
    rest = (with_local_rank(command.script, local_rank), *first, *arguments)
    begin = (command.python, FLAGS if "PYTHONFAULTHANDLER" not in command.env.variables else "-u")
    if command.run_path:
        return (*begin, *command.run_path, *rest)
    return (*begin, *(("-m",) if command.module else ()), *rest)


def with_local_rank(argument: str, local_rank: int) -> str:
    """Return an argument with `${local_rank}` replaced. As in torchrun, `$${local_rank}` is an
    escaped `${local_rank}`.
    """
    if _MACRO not in argument:
        return argument
    parts = argument.split("$" + _MACRO)
    return _MACRO.join([part.replace(_MACRO, str(local_rank)) for part in parts])


def suggest_replacement(flag: str) -> str:
    """Return a hint for a script that expects its local rank as an argument but doesn't get one."""
    return f"read LOCAL_RANK, or add {flag} '{_MACRO}' after the script"


def suggest_use_env(flag: str) -> str:
    """Return a hint for a script that rejects the argument that `relight launch` passes.

    Args:
        flag: the flag that the script accepts instead, or an empty string.
    """
    if not flag:
        return "relight launch passes --local-rank; use --use-env"
    return f"use --use-env, and add {flag} '{_MACRO}' after the script"


def same_local_rank(arguments: Sequence[str]) -> str:
    """Return the argument that would give every worker the same local rank, such as `--local_rank
    0`, or an empty string.
    """
    for word, value in zip(arguments, (*arguments[1:], ""), strict=False):
        flag, joined, its_value = word.partition("=")
        if flag in ("--local_rank", "--local-rank"):
            is_number = (its_value if joined else value).isdecimal()
            return (word if joined else f"{word} {value}") if is_number else ""
    return ""


def common_variables(command: Command) -> dict[str, str]:
    """Return the environment variables that are the same for all workers in all generations.

    The result may contain variables that belong to a single worker (`OF_ONE_WORKER`) if an outer
    launcher set them.
    """
    env = command.env
    result = dict(env.variables)
    for name in (*_OF_AGENTS, RECOVERY):
        result.pop(name, None)
    result["TORCHELASTIC_MAX_RESTARTS"] = str(command.max_restarts)
    result["TORCHELASTIC_RUN_ID"] = command.run_id
    result["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ",".join(map(signal_name, command.signals_to_handle))
    result["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = env.variables.get(
        "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"
    )
    if command.timer_file:
        result["TORCHELASTIC_TIMER_FILE"] = command.timer_file
    result |= {**command.breakpoint, **command.tracking}
    if command.recovery_notice_s:
        result[RECOVERY] = str(command.recovery_notice_s)
    if command.threads:
        result["OMP_NUM_THREADS"] = str(command.threads)
    return result


def variables(
    command: Command, generation: Generation, assignment: Assignment, error_file: str
) -> dict[str, str]:
    """Return the worker's complete environment.

    Raises:
        UsageError: if the list of visible GPUs is too short for this worker under
            `--virtual-local-rank`.
    """
    result = common_variables(command)
    result.update(group_variables(command, generation, assignment))
    result["TORCHELASTIC_ERROR_FILE"] = error_file
    if command.virtual_local_rank:
        result.update(visible_devices(command.env.variables, assignment.local_rank))
    return result


def group_variables(
    command: Command, generation: Generation, assignment: Assignment
) -> dict[str, str]:
    """Return the variables whose values change for a worker that keeps its process in a new
    generation.
    """
    return worker_variables(
        assignment,
        generation,
        agent_store=command.agent_store,
        virtual=command.virtual_local_rank,
    )


def prefix(command: Command, assignment: Assignment) -> bytes:
    """Return the prefix of each tee'd line from a worker.

    A template replaces torchrun's `[<role><local rank>]:`. The template supports `${role_name}`,
    `${rank}`, `${local_rank}` and `${hostname}`.
    """
    if not command.line_prefix:
        return f"[{assignment.role}{assignment.local_rank}]:".encode()
    from string import Template

    names = {
        "role_name": assignment.role,
        "rank": str(assignment.rank),
        "local_rank": str(assignment.local_rank),
        "hostname": command.host,
    }
    return Template(command.line_prefix).safe_substitute(names).encode()
