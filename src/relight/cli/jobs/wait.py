"""`relight wait`: waits until a job has ended."""

from relight.cli.jobs.common import (
    EXIT_TIMEOUT,
    HANDLE,
    JSON,
    Page,
    print_status,
    read_arguments,
    report,
    say,
)
from relight.flags.spec import Flag
from relight.runner.runner import Runner


def parse_seconds(text: str) -> float:
    """Parse a number of seconds. 0 means that the job's state is checked once."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ValueError("expected seconds, 0 or more")
    return seconds


PAGE = Page(
    "wait [flags] JOB",
    ("Waits until a job ends. JOB is its handle, id or name.",),
    (
        Flag("timeout", parse_seconds, None, "S", "wait at most this many seconds"),
        JSON,
    ),
    (
        f"relight wait {HANDLE}",
        "relight wait --timeout 3600 train-x3bk9qwz || relight logs train-x3bk9qwz",
    ),
    f"exit code: the job's own; {EXIT_TIMEOUT} if the wait timed out (the job keeps running)",
)


def main(argv: list[str]) -> int:
    """Run `relight wait`.

    Raises:
        RelightError: if the job does not exist.
    """
    parsed = read_arguments(argv, PAGE, 1, 1, "one job")
    with Runner() as runner:
        handle = runner.find(parsed.command[0])
        try:
            found = runner.wait(handle, parsed.values["timeout"])
        except TimeoutError as error:
            if parsed.values["json"]:
                print_status(handle, runner.status(handle))
            say(str(error))
            return EXIT_TIMEOUT
    if parsed.values["json"]:
        print_status(handle, found)
    report(handle, found)
    return found.exitcode
