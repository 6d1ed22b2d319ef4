"""`relight run`: launches the workers on a node, as torchrun does."""

from collections.abc import Iterable

from relight.agent.start import make_agent
from relight.base import env as environment
from relight.base.errors import EXIT_OK
from relight.flags import site
from relight.flags.arguments import ParsedFlags, parse, to_spec
from relight.flags.spec import FLAGS, Flag


def main(argv: list[str]) -> int:
    """Run `relight run` and return the job's exit code.

    Raises:
        RelightError: if nothing was started.
    """
    env = environment.read()
    parsed = parse(argv, env, site=site.load(env))
    if answered(parsed, "run", FLAGS):
        return EXIT_OK
    return make_agent(to_spec(parsed), parsed.given, env).run()


def answered(parsed: ParsedFlags, command: str, flags: Iterable[Flag]) -> bool:
    """If the command line requests help or completion, print it. Return whether anything was
    printed.
    """
    if parsed.values["help"]:
        from relight.flags.usage import run_help

        print(run_help(flags, command=command))
        return True
    shell = parsed.values["print_completion"]
    if shell:
        from relight.cli.torchrun_completion import script

        print(script(shell, flags))
    return bool(shell)
