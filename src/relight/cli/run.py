"""`relight run`: launches the workers of a node, as torchrun does."""

from relight.agent.start import make_agent
from relight.base import env as environment
from relight.base.env import Environment
from relight.flags.arguments import parse, to_spec
from relight.flags.spec import FLAGS, LaunchSpec


def main(argv: list[str]) -> int:
    """Run `relight run` and return the job's exit code.

    Raises:
        RelightError: nothing was started.
    """
    env = environment.read()
    parsed = parse(argv, env)
    if parsed.values["help"]:
        from relight.flags.usage import run_help

        print(run_help(FLAGS))
        return 0
    return launch(to_spec(parsed), parsed.given, env)


def launch(
    spec: LaunchSpec, given: "set[str]", env: Environment, *, local_rank_argument: bool = False
) -> int:
    """Run the agent, and return the job's exit code; takes what `agent.start.make_agent` takes.

    Raises:
        RelightError: nothing was started.
    """
    return make_agent(spec, given, env, local_rank_argument=local_rank_argument).run()
