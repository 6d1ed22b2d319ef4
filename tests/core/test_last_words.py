"""The most informative line of a worker's output, apart from tracebacks."""

import re

import pytest

from relight.core.diagnosis.last_words import (
    after_traceback,
    before_crash,
    lines_without_numbers,
    parting,
    weighed,
    words,
)
from relight.core.diagnosis.tracebacks import ProgramFacts
from relight.core.failure import ErrorReport, FailureKind

TRACEBACK = """\
Traceback (most recent call last):
  File "/srv/job/train.py", line 9, in <module>
    main()
ValueError: bad
"""
LOGGED = TRACEBACK.replace("<module>", "load")
BOX = """\
Usage: train.py [OPTIONS]
Try 'train.py --help' for help.
╭─ Error ──────────────────────────────────────────────────────────────────────╮
│ No such option: --learning-rat Did you mean                                  │
│ --learning-rate?                                                             │
╰──────────────────────────────────────────────────────────────────────────────╯
"""
FIRE = """\
ERROR: Could not consume arg: --learning_rat=0.1
Usage: train.py LEARNING_RATE <flags>
  optional flags:        --epochs

For detailed information on this command, run:
  train.py --help
"""
HYDRA = """\
Could not override 'lrr'.
To append to your config use +lrr=1
Key 'lrr' is not in struct
    full_key: lrr
    object_type=dict

Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.
"""
NOISE = """\
[rank1]:[W1126 18:46:38.1 ProcessGroupGloo.cpp:1] Warning: destroy_process_group() was not called
/srv/job/train.py:3: UserWarning: failed to find a config, error: none
  warnings.warn("failed to find a config")
2026-01-02 03:04:05,678 - train - INFO - errors: 0
[2026-01-02 03:04:05][train.data][INFO] - errors: 0
[Gloo] Rank 1 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1
WARNING: could not find a cache
2026-01-02 03:04:05,678 CRITICAL uncaught exception
 50%|#####     | 5/10 [00:01<00:01,  4.00it/s]
-----
"""


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        ("FATAL: /data/x is empty\n  tried: /data/a\n  tried: /data/b\n",
         "FATAL: /data/x is empty"),
        ("usage: x [-h]\ntrain.py: error: unrecognized arguments: --lrr\n",
         "train.py: error: unrecognized arguments: --lrr"),
        ("Usage: x\nTry 'x --help' for help.\n\nError: No such option: --lrr\n",
         "Error: No such option: --lrr"),
        (BOX, "Error: No such option: --learning-rat Did you mean --learning-rate?"),
        (FIRE, "ERROR: Could not consume arg: --learning_rat=0.1"),
        (HYDRA, "Could not override 'lrr'."),
        ("FATAL Flags parsing error:\n  Unknown command line flag 'lrr'\nPass --helpshort\n",
         "FATAL Flags parsing error: Unknown command line flag 'lrr'"),
        ("config error: lr must be > 0, got -0.1\n", "config error: lr must be > 0, got -0.1"),
        ("run.sh: line 3: foo: command not found\n", "run.sh: line 3: foo: command not found"),
        ("sim: 61.c:8: main: Assertion `x' failed.\n", "sim: 61.c:8: main: Assertion `x' failed."),
        ("thread 'main' panicked at src/main.rs:3:5:\nno data\nnote: run with RUST_BACKTRACE=1\n",
         "thread 'main' panicked at src/main.rs:3:5: no data"),
        ("terminate called after throwing an instance of 'E'\n",
         "terminate called after throwing an instance of 'E'"),
        ('{"level": "ERROR", "msg": "no \'x\'", "step": 3}\n', "ERROR: no 'x'"),
        ('{"level": "CRITICAL", "msg": "no vocabulary"}\n', "CRITICAL: no vocabulary"),
        ('{"levelname": "INFO", "message": "0 errors"}\n{"event": "disk is full"}\n',
         "disk is full"),
        ('level=info msg="0 errors"\nlevel=error msg="no data"\nbye\n',
         'level=error msg="no data"'),
        ("2026-01-02 03:04:05 ERROR no data\n2026-01-02 03:04:05 INFO bye\n",
         "2026-01-02 03:04:05 ERROR no data"),
        ("FATAL: no data\n" + "INFO: released a slot\n" * 150 + "bye\n", "FATAL: no data"),
        ("kernel: block size 0\nFatal Python error: Floating point exception\n",
         "kernel: block size 0"),
        ("step 7\nTimeout (0:05:00)!\nThread 0x00007f0a (most recent call first):\n"
         '  File "/srv/job/train.py", line 5 in wait\n', "Timeout (0:05:00)!"),
        ("retry failed\nretry failed\nERROR: storage is gone\n", "ERROR: storage is gone"),
        ("loading\ncannot read /data\nbye\n", "cannot read /data"),
        ("loading\naccuracy is too low\n" + NOISE, "accuracy is too low"),
        (NOISE, "step 5"),
        ("", "step 5"),
    ],
)  # fmt: skip
def test_error_line_is_preferred_over_last_line(stderr: str, expected: str) -> None:
    assert words(stderr, "loading\nstep 5\n\n") == expected


@pytest.mark.parametrize(
    "bar",
    [
        "\r 97%|#########7| 97/100 [00:01<00:00, 30.1it/s, loss=0.1]",
        "\r  0%|          | 0/100 [00:00<?, ?it/s]",
        "\r40it [00:00, 49.7it/s]",
        "\r 9%|#   | 9/99 [00:01<00:09, 9it/s]\n\r 4%|   | 4/99 [00:01<00:09, 9it/s]\x1b[A",
        "\r\x1b[2KTrain \x1b[35m━━╸━━━\x1b[0m  38% 0:00:09\r\x1b[2KTrain ━━━╸━━  40% 0:00:08",
        "\rstep 9/100 loss 0.31\rstep 10/100 loss 0.3",
        "9/100 [=>......] - loss: 0.31\x08\x08\x08\x0810/100 [==>.....] - loss: 0.3",
        "\rloading ⠋\rloading ⠙",
        "\r| loading\r/ loading\r- loading",
    ],
    ids=["postfix", "first", "total", "nested", "rich", "own", "keras", "spinner", "slash"],
)
@pytest.mark.parametrize("reason", ["FATAL: no data", "no data: stop", "t.py: error: bad --lr"])
def test_reason_on_the_line_of_a_progress_bar_is_found(bar: str, reason: str) -> None:
    assert words(f"{bar}{reason}\n", "") == reason
    assert words(f"{bar}usage: t.py [-h]\n{reason}\n", "") == reason


@pytest.mark.parametrize(
    "line",
    ["\rDownload 98%\rDownload 99%: failed", "\rload\rloading has failed", "\rshard 3\rfailed"],
)
def test_last_state_of_a_progress_line_is_kept_whole(line: str) -> None:
    assert words(f"{line}\n", "") == line.rpartition("\r")[2]


@pytest.mark.parametrize(
    ("mine", "expected"),
    [
        ("ERROR: no tensorboard\nstep 8\naccuracy 0.1: stop\n", "accuracy 0.1: stop"),
        ("ERROR: no tensorboard\nERROR: no data\nstep 9\n", "ERROR: no tensorboard"),
        ("ERROR: no tensorboard\nERROR: no data\nbye\n", "ERROR: no data"),
        ("ERROR: no tensorboard\nstep 8\n", "ERROR: no tensorboard"),
    ],
)
def test_later_line_is_preferred_over_one_that_surviving_ranks_also_printed(
    mine: str, expected: str
) -> None:
    """If those ranks also printed everything that follows, they may all have failed in the same
    way.
    """
    elsewhere = lines_without_numbers(["ERROR: no tensorboard\nstep 7\n", "step 8\n"])
    assert words(mine, "", elsewhere) == expected


def test_colours_and_json_do_not_hide_that_surviving_ranks_printed_a_line_too() -> None:
    alike = "\x1b[31mERROR\x1b[0m: no tensorboard 1\n", '{"level": "error", "msg": "no cache 1"}\n'
    elsewhere = lines_without_numbers(alike)
    assert words(f"{alike[0]}ERROR: no data\n", "", elsewhere) == "ERROR: no data"
    assert words(f"{alike[1]}ERROR: no data\n", "", elsewhere) == "ERROR: no data"


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        ("loading\nval_error: 0.31\nno data\n", "no data"),
        ("mean squared error: 0.31\nFATAL: no data\n", "FATAL: no data"),
        ("loading\n===== ERROR no data =====\nbye\n", "===== ERROR no data ====="),
        ("ValueError: no data\nbye\n", "ValueError: no data"),
    ],
)
def test_metric_is_no_error_and_error_in_a_ruler_is_one(stderr: str, expected: str) -> None:
    assert words(stderr, "") == expected


FRAMES = [
    "frame #{n}: c10::Error::Error(char const*) + 0x{n}c (0x7f{n}2a in /x/libc10.so)",
    "#{n} 0x55{n}e in read /srv/reader.cpp:{n}",
    "    #{n} 0x55{n}e (/srv/reader+0x1{n}9)",
    "/lib/x86_64-linux-gnu/libc.so.6(abort+0xdf) [0x7f{n}a]",
    "[host:0031{n}] [ {n}] /lib/libc.so.6(+0x3c0{n}0)[0x7f{n}0]",
    "    @     0x7f{n}a  google::LogMessage::Fail()",
    "   {n}: std::panicking::begin_panic_handler",
    "             at /rustc/a/library/std/src/panicking.rs:69{n}:5",
]


@pytest.mark.parametrize("frame", FRAMES)
def test_native_stack_does_not_hide_the_message_before_it(frame: str) -> None:
    frames = "".join(f"{frame.format(n=n)}\n" for n in range(1, 6))
    text = f"step 7\nkernel: block size 0\n{frames}"
    assert before_crash(text, lines_without_numbers(["step 7"])) == "kernel: block size 0"
    assert words(text, "") == "kernel: block size 0"


CRASH = """\
Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "/srv/job/train.py", line 9 in step

Extension modules: numpy (total: 1)
"""


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        ("kernel: block size 0\n", "kernel: block size 0"),
        ("ERROR: bad page\n  in shard 3\n[rank1]:[W1 x.cpp:1] Warning: slow\n", "ERROR: bad page"),
        ("kernel: block size 0\nstep 8\n", ""),
        ("ERROR: no GPU\nloss 0.3\nloss 0.2\n", ""),
        ("ERROR: thread 1\nERROR: thread 2\n", "ERROR: thread 1"),
        ("ERROR: no tensorboard\n", ""),
        ("ERROR: no tensorboard\nERROR: bad page\n", "ERROR: bad page"),
        ("ERROR: no GPU\nINFO:root:step 1\n", ""),
        ("ERROR: no GPU\n 50%|#####     | 5/10 [00:01<00:01,  4.00it/s]\n", ""),
        (f"ERROR:root:try 1\n{LOGGED}", ""),
    ],
)
def test_only_output_right_before_a_crash_is_related_to_it(stderr: str, expected: str) -> None:
    elsewhere = lines_without_numbers(["ERROR: no tensorboard\nstep 7\n"])
    assert before_crash(stderr, elsewhere) == expected
    assert before_crash(f"{stderr}{CRASH}", elsewhere) == expected


@pytest.mark.parametrize(
    ("stderr", "stdout", "expected"),
    [
        ("no data left, leaving\n", "step 4\n", "no data left, leaving"),
        ("INFO:root:dataset is exhausted\nWARNING: slow\n", "", "INFO:root:dataset is exhausted"),
        ("shard 9 of 8\n", "step 4\n", "shard 9 of 8"),
        (NOISE, "step 4\nearly stopping\n", "early stopping"),
        ('{"message": "stopping: no data"}\n', "", "stopping: no data"),
        (NOISE, "epoch 4, lr 0.1\n", ""),
        ("step 5\n", "step 4\n", ""),
        ("", "", ""),
    ],
)
def test_rank_that_left_early_may_have_printed_why(stderr: str, stdout: str, expected: str) -> None:
    elsewhere = lines_without_numbers(["step 7\n"])
    assert parting(stderr, stdout, elsewhere) == expected


def test_exception_in_a_destructor_is_uninformative() -> None:
    ignored = "Exception ignored in: <socket 3>\nOSError: [Errno 9] Bad file descriptor\n"
    assert after_traceback(f"{TRACEBACK}{ignored}", ProgramFacts()) == ""
    assert words(f"no data\n{ignored}", "") == "no data"
    assert words(f"{ignored}config: lr is negative\n", "") == "config: lr is negative"


@pytest.mark.parametrize(
    ("more", "kind", "doubt"),
    [
        ("", FailureKind.RAISED, ""),
        ("config error: lr is 0", FailureKind.PRINTED, ""),  # sys.exit
        ("validation set is empty", FailureKind.RAISED,
         "it printed more after that: validation set is empty"),
        ("ERROR:root:could not upload logs", FailureKind.RAISED,
         "it printed more after that: ERROR:root:could not upload logs"),
    ],
)  # fmt: skip
def test_exception_followed_by_other_output_is_marked_doubtful(
    more: str, kind: FailureKind, doubt: str
) -> None:
    raised = ErrorReport(FailureKind.RAISED, "KeyError", "'a'", "train.py:9", "", ())
    assert weighed(raised, more) == raised._replace(kind=kind, doubt=doubt)
    stderr = f"{LOGGED}{more}\n"
    assert after_traceback(stderr, ProgramFacts()) == more
    assert after_traceback(stderr, ProgramFacts(), late=len(more) + 1) == ""


@pytest.mark.parametrize(
    "advice", ["(set --heads or delete the checkpoint)", "Hint: set --heads", "Please set --heads"]
)
def test_advice_at_the_end_is_shown_with_the_line_before_it(advice: str) -> None:
    """That line has the reason."""
    reason = "config and checkpoint disagree: 12 vs 16 heads"
    assert words(f"step 1\n{reason}\n{advice}\n", "") == f"{reason} {advice}"
    assert words(f"{advice}\n", "") == advice
    assert words(f"ERROR: no heads\n{advice}\n", "") == "ERROR: no heads"


def test_long_line_before_advice_is_shortened() -> None:
    advice = "Please set HF_TOKEN to access gated models"
    shown = words(f"config: {'lr=1 ' * 280}\n{advice}\n", "")
    assert re.fullmatch(rf"config: (lr=1 )+… {advice}", shown)
    assert len(shown) <= 160


@pytest.mark.parametrize(
    ("before", "last"),
    [
        ("loading data", "set seed 42"),
        ("rank 3 is done", "Use Ctrl-C to stop"),
        ("loaded", "help is near"),
        ("step 1\nstep 2", "(rank 3 done)"),
    ],
)
def test_ordinary_last_line_is_shown_alone(before: str, last: str) -> None:
    assert words(f"{before}\n{last}\n", "") == last


def test_introduction_of_a_caught_exception_by_loguru_is_uninformative() -> None:
    line = (
        "2026-01-02 03:04:05.774 | ERROR    | __main__:<module>:24 - An error has been caught in "
        "function '<module>', process 'MainProcess' (7), thread 'MainThread' (14):"
    )
    assert words(f"no data\n{line}\n{TRACEBACK}", "") == "no data"


def test_worker_without_output_has_no_informative_line() -> None:
    assert words("", "") == ""


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        # The reason a program gives for exiting, after a handled exception.
        (f"ERROR: old\n{LOGGED}giving up\n", "giving up"),
        (f"ERROR: old\n{TRACEBACK}FATAL: giving up\n", "FATAL: giving up"),
        # A failed subprocess, before the exception that reports it.
        (f"loading\nfatal error: Unable to locate credentials\n{TRACEBACK}",
         "fatal error: Unable to locate credentials"),
        (f"fatal error: Unable to locate credentials\n{TRACEBACK}{NOISE}",
         "fatal error: Unable to locate credentials"),
        # If no line mentions an error, stdout is as good.
        (f"loading\n{TRACEBACK}", "accuracy 0.31 is below 0.5"),
        (f"{TRACEBACK}", "accuracy 0.31 is below 0.5"),
    ],
)  # fmt: skip
def test_lines_after_last_traceback_are_preferred_over_lines_before_it(
    stderr: str, expected: str
) -> None:
    assert words(stderr, "accuracy 0.31 is below 0.5\n") == expected
