"""Creates an agent from a command line, for both `relight run` and `relight.run`."""

import sys

from relight.agent.agent import Agent
from relight.agent.prepare import prepare
from relight.base import exit_signals
from relight.base.env import Environment
from relight.flags.spec import LaunchSpec


def make_agent(
    spec: LaunchSpec, given: "set[str]", env: Environment, *, local_rank_argument: bool = False
) -> Agent:
    """Check the request, print notes about it, and return the agent that runs it.

    Args:
        spec: the launch's options.
        given: the flags that were given explicitly.
        env: the environment.
        local_rank_argument: whether each script receives `--local-rank=N` (`relight launch`).

    Raises:
        RelightError: if the job can't be started.
    """
    job, notes = prepare(spec, given, env, local_rank_argument=local_rank_argument)
    for note in notes:
        print(f"relight: note: {note}", file=sys.stderr)
    sys.stderr.flush()
    exit_signals.restore_defaults(set(exit_signals.NUMBERS) - set(job.command.signals_to_handle))
    return Agent(job)
