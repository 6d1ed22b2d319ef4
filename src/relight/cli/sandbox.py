"""`relight sandbox`: runs a job on several virtual hosts on this machine, with injected faults."""

import os
import secrets
import sys
from collections.abc import Mapping, Sequence

from relight.agent import entrypoint
from relight.base import env as environment
from relight.base.env import Environment
from relight.base.errors import EXIT_OK, UsageError
from relight.base.text import pluralize
from relight.base.values import parse_pattern, whole
from relight.cli.jobs.common import Page
from relight.flags.arguments import parse, split, to_spec
from relight.flags.spec import FLAGS, Flag, LaunchSpec, check
from relight.host import system
from relight.processes import interpreter
from relight.sandbox import access, faults, run
from relight.sandbox.faults import Fault, Plan

_OWN = (Flag("faults", parse_pattern, "", "FILE",
             "file with the faults to inject, one per line", from_env=False),)  # fmt: skip
_FLAGS = (*_OWN, *FLAGS)
_MAX_HOSTS = 64
_LARGEST_FILE = 1 << 20
_OF_ONE_HOST = ("standalone", "node-rank", "master-addr", "local-addr")
PAGE = Page(
    "sandbox N [flags] [flags of relight run] -- SCRIPT [arguments]",
    (
        "Runs a job on N hosts, host1 to hostN, on this Linux machine: network namespaces with one",
        "agent (relight run) on each. The hosts reach only each other; files are shared.",
        "Each line of output begins with its host. Requires root or user namespaces.",
        "",
        "Defaults: --nnodes=N --rdzv-backend=c10d --rdzv-endpoint=host1,host2,host3",
        "(host1 if N is 2). On a terminal, keys inject faults: a letter, then a host number.",
        "",
        "faults, one per line:  WHEN WHAT",
        '  at 5s | after 3s (after the line before) | when "TEXT" (in the output)',
        "  kill, freeze, continue (host N or rank N), start, cut (host N), heal [host N],",
        "  delay 50ms [host N], loss 10% [host N]",
    ),
    _OWN,
    (
        "relight sandbox 3 --nnodes=2:3 --max-restarts=3 -- train.py --epochs=3",
        "relight sandbox 2 --nproc-per-node=2 --faults=faults.txt -- train.py",
    ),
    "exit code: that of the last agent to exit; see docs/sandbox.md",
)


def main(argv: list[str]) -> int:
    """Run `relight sandbox` and return the job's exit code.

    Raises:
        RelightError: if nothing was started, or the hosts were lost.
    """
    count, rest = _count(argv)
    env = environment.read()
    parsed = parse(rest, env, _FLAGS)
    if parsed.values["help"] or not argv:
        print(PAGE.text())
        return EXIT_OK
    system.require_linux("relight sandbox")
    if not parsed.command:
        raise UsageError("no training script given", hint=f"relight {PAGE.usage}")
    spec = to_spec(parsed)
    texts = split(rest, {flag.name: flag for flag in _FLAGS})[0]
    more = _derived(spec, parsed.given, count)
    _check(spec, parsed.given, count, env)
    plan = Plan(_faults(parsed.values["faults"], spec, count))
    command = [sys.executable, "-m", "relight", "run", *_agent_flags(texts), *more, "--",
               spec.script, *spec.script_args]  # fmt: skip
    ahead = access.prefix()
    if ahead:
        sys.stderr.flush()
        os.execv(ahead[0], [*ahead, sys.executable, "-m", "relight", "sandbox", *argv])

    # Only the job's own agents can reach it.
    variables = {"RELIGHT_TOKEN": secrets.token_hex(16), **env.variables}
    return run.run(command, count, variables, plan)


def _count(argv: Sequence[str]) -> tuple[int, list[str]]:
    """Return the number of hosts and the remaining arguments."""
    word, *rest = [*argv, ""][: max(len(argv), 1)]
    if word in ("", "-h", "--help"):
        return 0, list(argv)
    number = whole(word)
    if number is None:
        raise UsageError(
            f"the first argument of relight sandbox is the number of hosts, not {word}",
            hint=f"relight {PAGE.usage}",
        )
    if not 1 <= number <= _MAX_HOSTS:
        raise UsageError(f"a sandbox has 1 to {_MAX_HOSTS} hosts, not {word}")
    return number, rest


def _derived(spec: LaunchSpec, given: "set[str]", count: int) -> list[str]:
    """Return the agents' rendezvous flags, leaving out those that the user has given."""
    endpoint = ",".join(f"host{n}" for n in range(1, min(count, 3) + 1)) if count > 2 else "host1"
    flags = {
        "nnodes": str(count),
        "rdzv-backend": "c10d",
        "rdzv-endpoint": "" if spec.rdzv_backend == "file" else endpoint,
        "rdzv-id": "sandbox",
    }
    return [f"--{name}={text}" for name, text in flags.items() if text and name not in given]


def _check(spec: LaunchSpec, given: "set[str]", count: int, env: Environment) -> None:
    """Reject settings that can't work on virtual hosts."""
    for name in _OF_ONE_HOST:
        if name in given:
            raise UsageError(
                f"--{name} is not supported in a sandbox; all hosts get the same flags",
                hint="leave it out; agents rendezvous at host1",
            )
    if "rdzv-backend" in given and spec.rdzv_backend not in ("c10d", "file"):
        raise UsageError(
            f"--rdzv-backend={spec.rdzv_backend}: sandbox hosts can't reach anything outside it",
            hint="use c10d (the default) or file with a directory",
        )
    if "nnodes" in given and spec.nnodes.min_nodes > count:
        raise UsageError(
            f"--nnodes={spec.nnodes} needs more than {pluralize(count, 'sandbox host')}",
            hint=f"relight sandbox {spec.nnodes.min_nodes} …",
        )
    check(spec._replace(rdzv_backend="c10d"), given)
    entrypoint.check(spec, env, interpreter.choose(env))


def _faults(path: str, spec: LaunchSpec, count: int) -> list[Fault]:
    if not path:
        return []
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise UsageError(f"--faults={path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--faults={path} is not UTF-8 text") from None
    if len(text) > _LARGEST_FILE:
        raise UsageError(f"--faults={path} is larger than 1 MiB")
    local_world_size = int(spec.nproc_per_node) if spec.nproc_per_node.isdecimal() else 0
    return faults.read(text, path, count, ranks=count * local_world_size)


def _agent_flags(texts: Mapping[str, str]) -> list[str]:
    """Return the flags to pass to each agent, exactly as the user typed them."""
    switches = {flag.name for flag in FLAGS if flag.parse is None}
    own = {flag.name for flag in _OWN}
    return [
        f"--{name}" if name in switches else f"--{name}={text}"
        for name, text in texts.items()
        if name not in own
    ]
