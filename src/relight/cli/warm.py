"""`relight warm`: what is kept so that the next job of a script starts sooner."""

from relight import env
from relight.cli.jobs import HELP, Page, read_arguments, say
from relight.errors import EXIT_OK, MachineError, UsageError, did_you_mean, many
from relight.host import learned

VERBS = ("forget",)
PAGE = Page(
    "warm forget [SCRIPT]",
    (
        "Forgets which modules the workers of SCRIPT import, as --preload=auto has learned it: the",
        "next job with this script learns it again. SCRIPT is a file, or the name of a module that",
        "is run with -m; without it, everything is forgotten.",
    ),
    (HELP,),
    ("relight warm forget train.py", "relight warm forget"),
    "exit code: 0, also if nothing was known",
)


def main(argv: list[str]) -> int:
    """Run `relight warm`.

    Raises:
        UsageError: the verb is unknown.
        MachineError: a file can't be removed.
    """
    parsed = read_arguments(argv, PAGE, 1, 2, "a verb and at most one script")
    verb, *scripts = parsed.command
    if verb not in VERBS:
        hint = did_you_mean(verb, VERBS, f"relight {PAGE.usage}")
        raise UsageError(f"relight warm has no verb {verb}", hint=hint)
    if scripts == [""]:
        raise UsageError("relight warm forget: SCRIPT is empty", hint=f"relight {PAGE.usage}")
    variables = env.read().variables
    if not learned.directory(variables):
        say("nothing was known: neither XDG_CACHE_HOME nor HOME is an absolute path")
        return EXIT_OK
    try:
        forgotten = learned.forget(variables, *scripts)
    except OSError as error:
        raise MachineError(
            f"can't remove {error.filename}: {error.strerror}",
            hint="look at the permissions of its directory",
        ) from None
    for script in forgotten:
        say(f"forgot {script}")
    if not forgotten:
        of = f" about {scripts[0]}" if scripts else ""
        say(f"nothing was known{of} in {learned.directory(variables)}")
    elif not scripts:
        say(f"{many(len(forgotten), 'script')} forgotten")
    return EXIT_OK
