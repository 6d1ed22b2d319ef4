"""`relight cancel`: stops jobs."""

from relight.base.errors import EXIT_OK
from relight.cli.jobs.common import HANDLE, JSON, Page, print_status, read_arguments, say
from relight.runner.lookup import Purpose
from relight.runner.runner import Runner

_MANY = 1000
PAGE = Page(
    "cancel [flags] JOB …",
    ("Stops running jobs; their logs and records are kept. JOB is a handle, an id or a name.",),
    (JSON,),
    (f"relight cancel {HANDLE}",),
    "exit code: 0 even if a job had already ended; 2 if a job does not exist, or if all jobs of a\n"
    "name have already ended",
)


def main(argv: list[str]) -> int:
    """Run `relight cancel`.

    Raises:
        RelightError: if the job does not exist.
    """
    parsed = read_arguments(argv, PAGE, 1, _MANY, "a job")
    with Runner() as runner:
        for handle in [runner.find(text, Purpose.CANCEL) for text in parsed.command]:
            was_over, found = runner.cancel_unless_over(handle)
            if parsed.values["json"]:
                print_status(handle, found)
            else:
                note = " (it had already ended)" if was_over else ""
                if not found.state.is_over:  # not every scheduler waits for the replicas to exit
                    note = f" (it is being stopped; relight wait {handle} waits until it has ended)"
                say(f"{handle} {found.state.name}{note}")
    return EXIT_OK
