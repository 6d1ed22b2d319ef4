"""`relight launch`: a variant of `relight run` for users of `python -m torch.distributed.launch`.

Older scripts expect their local rank as an argument, so without `--use-env`, each worker gets
`--local-rank=N` before its own arguments. Everything else works as in `relight run`.
"""

from relight.agent.start import make_agent
from relight.base import env as environment
from relight.base.errors import EXIT_OK, UsageError
from relight.cli import run
from relight.flags import site
from relight.flags.arguments import parse, to_spec
from relight.flags.spec import FLAGS, Flag

LAUNCH_FLAGS = (
    *FLAGS,
    Flag("use-env", None, False, "", "pass the local rank only in LOCAL_RANK", from_env=False),
)


def main(argv: list[str]) -> int:
    """Run `relight launch` and return the job's exit code.

    Raises:
        RelightError: if nothing was started.
    """
    env = environment.read()
    parsed = parse(argv, env, LAUNCH_FLAGS, site.load(env))
    if run.answered(parsed, "launch", LAUNCH_FLAGS):
        return EXIT_OK
    spec = to_spec(parsed)
    use_env = bool(parsed.values["use_env"])
    if spec.no_python and not use_env:
        raise UsageError(
            "--no-python needs --use-env: --local-rank=N is an argument for Python scripts",
            hint="relight launch --use-env --no-python PROGRAM",
        )
    return make_agent(spec, parsed.given, env, local_rank_argument=not use_env).run()
