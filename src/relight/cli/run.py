"""`relight run`: launches the workers of a node, as torchrun does."""

import sys

from relight import env as environment
from relight.agent import Agent
from relight.cli import signals
from relight.cli.arguments import parse, to_spec
from relight.env import Environment
from relight.prepare import prepare
from relight.spec import FLAGS, LaunchSpec


def main(argv: list[str]) -> int:
    """Run `relight run` and return the job's exit code.

    Raises:
        RelightError: nothing was started.
    """
    env = environment.read()
    parsed = parse(argv, env)
    if parsed.values["help"]:
        from relight.cli.usage import run_help

        print(run_help(FLAGS))
        return 0
    return launch(to_spec(parsed), parsed.given, env)


def launch(
    spec: LaunchSpec, given: "set[str]", env: Environment, *, local_rank_argument: bool = False
) -> int:
    """Run the agent, and return the job's exit code; takes what `make_agent` takes.

    Raises:
        RelightError: nothing was started.
    """
    return make_agent(spec, given, env, local_rank_argument=local_rank_argument).run()


def make_agent(
    spec: LaunchSpec, given: "set[str]", env: Environment, *, local_rank_argument: bool = False
) -> Agent:
    """Check the request, print notes on it, and return the agent that runs it.

    Args:
        spec: the launch's options.
        given: the flags that were given explicitly.
        env: the environment.
        local_rank_argument: whether each script gets `--local-rank=N` (`relight launch`).

    Raises:
        RelightError: nothing was started.
    """
    job, notes = prepare(spec, given, env, local_rank_argument=local_rank_argument)
    for note in notes:
        print(f"relight: note: {note}", file=sys.stderr)
    sys.stderr.flush()
    signals.restore_defaults(set(signals.NUMBERS) - set(job.command.spec.signals_to_handle))
    return Agent(job)
