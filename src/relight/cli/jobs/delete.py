"""`relight delete`: stops jobs and removes their logs, state and records."""

from relight.base.errors import EXIT_OK
from relight.cli.jobs.common import HANDLE, Page, read_arguments, say
from relight.runner.lookup import Purpose
from relight.runner.runner import Runner

_MANY = 1000
PAGE = Page(
    "delete [flags] JOB …",
    (
        "Stops jobs and removes their logs, state and record.",
        "JOB is a handle, an id or a name.",
    ),
    (),
    (
        f"relight delete {HANDLE}",
        "relight list --json | jq -r '.[] | select(.state==\"FAILED\").handle' | "
        "xargs relight delete",
    ),
    "exit code: 0, or 2 if a job does not exist",
)


def main(argv: list[str]) -> int:
    """Run `relight delete`.

    Raises:
        RelightError: if the job does not exist.
    """
    parsed = read_arguments(argv, PAGE, 1, _MANY, "a job")
    with Runner() as runner:
        for handle in [runner.find(text, Purpose.DELETE) for text in parsed.command]:
            runner.delete(handle)
            say(f"deleted {handle}")
    return EXIT_OK
