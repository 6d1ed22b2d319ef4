"""Extracting the exception and the script's line from a worker's output.

The files in samples/ are real output from each version of Python, torch, rich and libstdc++, in
which only the paths were changed.
"""

import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relight.core.diagnosis import blame
from relight.core.diagnosis.excerpts import count_rows, excerpt, headline
from relight.core.diagnosis.last_words import words
from relight.core.diagnosis.traceback_lines import clean
from relight.core.diagnosis.tracebacks import (
    ProgramFacts,
    besides,
    from_error_file,
    from_stderr,
    keep,
    last_lines,
    printed_before,
)
from relight.core.failure import FailureKind

SAMPLES = {path.stem: path for path in sorted((Path(__file__).parent / "samples").glob("*.txt"))}
RAISED, CRASHED, PRINTED = FailureKind.RAISED, FailureKind.CRASHED, FailureKind.PRINTED
NO_KEY = "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
NO_INT = "invalid literal for int() with base 10: 'x'"
TOO_DEEP = "maximum recursion depth exceeded"


def read(name: str) -> str:
    return SAMPLES[name].read_text()


# fmt: off
EXPECTED = [
    ("abort-3.12", CRASHED, "fatal error", "Aborted", "4 in crash", ""),
    ("assert-3.13", RAISED, "AssertionError", "got 1", "2 in f", "assert a == 2, f'got {a}'"),
    ("asyncnever-3.11", PRINTED, "KeyError", "'k'", "3 in bad", "raise KeyError('k')"),
    ("atexit-3.13", RAISED, "ValueError", "real", "5", "raise ValueError('real')"),
    ("chain-3.11", RAISED, "SystemError", "training could not start", "13 in main",
     'except RuntimeError as e: raise SystemError("training could not start") from e'),
    ("colour-3.13", RAISED, "JSONDecodeError", NO_KEY, "4 in load", "return json.loads(text)"),
    ("dataclass-3.11", RAISED, "ValueError", "1", "6 in __post_init__", "raise ValueError(self.x)"),
    ("during-3.13", RAISED, "ValueError", "no a", "5 in f", "raise ValueError('no a')"),
    ("empty-3.11", RAISED, "ValueError", "", "1", "raise ValueError"),
    ("excepthook-3.11", RAISED, "ValueError", "real", "5", "raise ValueError('real')"),
    ("exec-3.13", RAISED, "ZeroDivisionError", "division by zero", "1", "exec('1/0')"),
    ("from-3.11", RAISED, "ValueError", "no a", "5 in f", "raise ValueError('no a') from e"),
    ("futures-3.11", RAISED, "JSONDecodeError", NO_KEY, "4 in work", "return json.loads(x)"),
    ("group-3.11", RAISED, "ExceptionGroup",
     f"two (2 sub-exceptions): ValueError: {NO_INT}\nTypeError: t", "3 in g", "int(n)"),
    ("group-3.13", RAISED, "ExceptionGroup",
     f"two (2 sub-exceptions): ValueError: {NO_INT}\nTypeError: t", "3 in g", "int(n)"),
    ("ignored-3.12", RAISED, "ValueError", "real", "6 in f", "raise ValueError('real')"),
    ("importfrom-3.11", RAISED, "ImportError",
     "cannot import name 'nosuch' from 'json' (/usr/lib/python3.11/json/__init__.py)", "1",
     "from json import nosuch"),
    ("importsyntax-3.12", RAISED, "SyntaxError", "invalid syntax", "model.py:1", "def f(:"),
    ("indent-3.13", RAISED, "IndentationError",
     "expected an indented block after function definition on line 1", "2", "return 1"),
    ("json-3.12", RAISED, "JSONDecodeError", NO_KEY, "4 in load", "return json.loads(text)"),
    ("kbd-3.11", RAISED, "KeyboardInterrupt", "", "1", "raise KeyboardInterrupt"),
    ("local-3.12", RAISED, "MyError", "boom", "3 in f", "raise MyError('boom')"),
    ("logging-3.11", RAISED, "KeyError", "'a'", "3", "{}['a']"),
    ("loguru-3.11", RAISED, "ZeroDivisionError", "division by zero", "4 in main", "x / 0"),
    ("mp-3.13", RAISED, "RuntimeError", "child ended with 1", "7",
     "raise RuntimeError(f'child ended with {p.exitcode}')"),
    ("multi-3.11", RAISED, "RuntimeError", "first\n\nsecond\n  third", "1",
     "raise RuntimeError('first\\n\\nsecond\\n  third')"),
    ("notes-3.13", RAISED, "ValueError", f"{NO_INT}\nwhile reading row 3\nof file data.csv", "2",
     "int('x')"),
    ("plain-3.11", RAISED, "ZeroDivisionError", "division by zero", "2 in f", "return 1 / x"),
    ("plain-3.12", RAISED, "ZeroDivisionError", "division by zero", "2 in f", "return 1 / x"),
    ("plain-3.13", RAISED, "ZeroDivisionError", "division by zero", "2 in f", "return 1 / x"),
    ("pool-3.11", RAISED, "ValueError", "in the pool", "3 in child",
     "raise ValueError('in the pool')"),
    ("pool-3.13", RAISED, "ValueError", "in the pool", "3 in child",
     "raise ValueError('in the pool')"),
    ("pool_library-3.11", RAISED, "JSONDecodeError", NO_KEY, "5 in main",
     'print(pool.map(json.loads, ["{"]))'),
    ("ray-3.11", RAISED, "ValueError", "bad", "8 in g", 'def g(): raise ValueError("bad")'),
    ("ray_cause-3.11", RAISED, "ValueError", "bad", "6 in f",
     'except KeyError as e: raise ValueError("bad") from e'),
    ("recursion-3.12", RAISED, "RecursionError", TOO_DEEP, "2 in f", "return f(n + 1)"),
    ("rich-3.11", RAISED, "RuntimeError", "cannot read\nthe config", "10 in main",
     'raise RuntimeError("cannot read\\nthe config") from e'),
    ("segv-3.11", CRASHED, "fatal error", "Segmentation fault", "4 in crash", ""),
    ("segvthread-3.13", CRASHED, "fatal error", "Segmentation fault", "4 in crash", ""),
    ("syntax-3.11", RAISED, "SyntaxError", "expected ':'", "2", "if x"),
    ("syntax-3.13", RAISED, "SyntaxError", "expected ':'", "2", "if x"),
    ("taskgroup-3.12", RAISED, "ExceptionGroup",
     "unhandled errors in a TaskGroup (1 sub-exception): KeyError: 'k'", "4 in bad",
     "raise KeyError('k')"),
    ("terminate-cpp", CRASHED, "c10::DistBackendError",
     "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7) ran for 600000 "
     "milliseconds before timing out.", None, ""),
    ("thread-3.11", PRINTED, "ValueError", "in a thread", "3 in work",
     "raise ValueError('in a thread')"),
    ("thread-3.13", PRINTED, "ValueError", "in a thread", "3 in work",
     "raise ValueError('in a thread')"),
    ("torch_barrier-3.11", RAISED, "RuntimeError",
     "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 3000 ms\n Original exception: \n"
     "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] "
     "Timed out waiting 3000ms for recv operation to complete", "21",
     "dist.monitored_barrier(timeout=td)"),
    ("torch_collate-3.11", RAISED, "RuntimeError",
     "stack expects each tensor to be equal size, but got [4] at entry 0 and [5] at entry 2",
     "6 in main", "for batch in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=1):"),
    ("torch_enospc-3.11", RAISED, "RuntimeError",
     "[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598", "3 in save",
     'torch.save({"w": torch.ones(1 << 22)}, "/ckpt/step.pt")'),
    ("torch_layers-3.11", RAISED, "RuntimeError",
     "mat1 and mat2 shapes cannot be multiplied (2x4 and 5x6)", "3 in step", "return m(x)"),
    ("torch_loader-3.11", RAISED, "ValueError", "bad row 0", "6 in __getitem__",
     'raise ValueError(f"bad row {i}")'),
    ("torch_loader_killed-3.11", RAISED, "RuntimeError",
     "DataLoader worker (pid(s) 17263) exited unexpectedly", "8",
     "for b in DataLoader(D(), num_workers=1):"),
    ("torch_rank-3.11", RAISED, "ValueError", "bad batch\nin shard 3", "5 in step",
     'raise ValueError("bad batch\\nin shard 3")'),
    ("torch_spawn-3.11", RAISED, "ValueError", "bad", "3 in f", 'raise ValueError("bad")'),
    ("torch_state_dict-3.11", RAISED, "RuntimeError",
     "Error(s) in loading state_dict for Linear:\n"
     '    Missing key(s) in state_dict: "weight", "bias". \n'
     '    Unexpected key(s) in state_dict: "0.weight", "0.bias". ', "3",
     "m.load_state_dict(nn.Sequential(nn.Linear(3, 5)).state_dict())"),
    ("torch_timeout-3.11", RAISED, "RuntimeError",
     "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] "
     "Timed out waiting 3000ms for recv operation to complete", "15",
     "dist.all_reduce(torch.ones(1))"),
    ("typer-3.11", RAISED, "ValueError", "bad 3", "3 in work", 'raise ValueError(f"bad {x}")'),
    ("typer_plain-3.11", RAISED, "ValueError", "bad 3", "3 in work",
     'raise ValueError(f"bad {x}")'),
    ("unicode-3.12", RAISED, "Fehlerä", "größe", "2", "raise Fehlerä('größe')"),
]
# fmt: on


@pytest.mark.parametrize(
    ("name", "kind", "type_", "message", "place", "source"), EXPECTED, ids=[e[0] for e in EXPECTED]
)
def test_exception_is_extracted_from_real_worker_output(
    name: str, kind: FailureKind, type_: str, message: str, place: str | None, source: str
) -> None:
    """The script's line is extracted with the exception."""
    report = from_stderr(read(name))
    assert report is not None
    where = "" if place is None else place if ".py" in place else f"train.py:{place}"
    assert (report.kind, report.type, report.message) == (kind, type_, message)
    assert report.where.removeprefix("/srv/job/") == where
    assert report.source == source


def test_every_traceback_sample_has_an_expected_result() -> None:
    assert set(SAMPLES) == {name for name, *_ in EXPECTED}


HEADER = "Traceback (most recent call last):\n"
MAIN = HEADER + '  File "/srv/job/train.py", line 9, in <module>\n    main()\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("all is well\nepoch 1\n", None),
        (HEADER, None),
        (MAIN, None),
        # Python 3.14 names a thread's interpreter, and adds the C stack.
        (
            "Fatal Python error: Segmentation fault\n\n"
            "Current thread 0x00007f [python] (most recent call first):\n"
            '  File "/srv/job/train.py", line 3 in crash\n'
            '  File "/srv/job/train.py", line 9 in <module>\n\n'
            "Current thread's C stack trace (most recent call first):\n"
            '  Binary file "python", at _Py_DumpStack+0x31 [0x55]\n'
            "Extension modules: torch._C (total: 1)\n",
            (CRASHED, "Segmentation fault", "/srv/job/train.py:3 in crash"),
        ),
        # Python 3.14, in a finalizer.
        (
            MAIN + "ValueError: bad\nException ignored while calling deallocator <function A>:\n"
            + MAIN + "OSError: in a destructor\n",
            (RAISED, "bad", "/srv/job/train.py:9"),
        ),
        # An abort while Python shuts down, after the fatal exception.
        (
            MAIN + "ValueError: bad\nterminate called without an active exception\n"
            "Fatal Python error: Aborted\n\nCurrent thread 0x7f (most recent call first):\n"
            "  <no Python frame>\n",
            (RAISED, "bad", "/srv/job/train.py:9"),
        ),
        # A crash long after a printed exception.
        (
            MAIN + "ValueError: bad\nFatal Python error: Aborted\n\n"
            "Current thread 0x7f (most recent call first):\n"
            '  File "/srv/job/train.py", line 3 in crash\n',
            (CRASHED, "Aborted", "/srv/job/train.py:3 in crash"),
        ),
        # Native code aborts, and faulthandler prints the location.
        (
            read("terminate-cpp") + "Fatal Python error: Aborted\n\n"
            "Thread 0x7f (most recent call first):\n"
            '  File "/srv/venv/lib/python3.11/site-packages/torch/x.py", line 3 in wait\n'
            '  File "/srv/job/train.py", line 4 in step\n',
            (CRASHED, "[Rank 1] Watchdog", "/srv/job/train.py:4 in step"),
        ),
        # Other threads print between the lines.
        (
            HEADER + 'NCCL INFO channel 3 : 0\n  File "/srv/job/train.py", line 9, in <module>\n'
            "vm:12:34 [0] NCCL INFO closed\n    main()\nINFO: done\nValueError: bad\n",
            (RAISED, "bad", "/srv/job/train.py:9"),
        ),
        # The beginning is missing.
        (
            '    main()\n  File "/srv/job/train.py", line 5, in f\n    f()\nRecursionError: deep\n',
            (RAISED, "deep", "/srv/job/train.py:5 in f"),
        ),
        # A printed stack is not an exception.
        ('\n' * 9 + '  File "/srv/job/train.py", line 5, in f\n    f()\nnote: fine\n', None),
        # More was printed afterwards than an exiting process prints.
        (MAIN + "ValueError: a\n" + "INFO: epoch\n" * 51, (PRINTED, "a", "/srv/job/train.py:9")),
        (MAIN + "ValueError: a\n" + "INFO: epoch\n" * 50, (RAISED, "a", "/srv/job/train.py:9")),
        # A logged exception; the program continued.
        (
            "2026-01-02 03:04:05,678 - train - ERROR - skipped\n" + MAIN + "ValueError: bad\nok\n",
            (PRINTED, "bad", "/srv/job/train.py:9"),
        ),
        # A JSON log.
        (
            json.dumps({"level": "ERROR", "exc": MAIN + 'ValueError: bad "row"', "step": 3}),
            (RAISED, 'bad "row"', "/srv/job/train.py:9"),
        ),
        (
            json.dumps({"level": "ERROR", "exc": MAIN + "ValueError: bad"}) + "\nstep 4\n",
            (PRINTED, "bad", "/srv/job/train.py:9"),
        ),
        # A path with a quote, and one that looks like a location.
        (
            HEADER + '  File "/srv/"a", line 1/train.py", line 9, in <module>\nValueError: bad\n',
            (RAISED, "bad", '/srv/"a", line 1/train.py:9'),
        ),
        # An installed program, started by Python, calls a library.
        (
            HEADER + '  File "<frozen runpy>", line 88, in _run_code\n'
            '  File "/srv/venv/lib/python3.11/site-packages/trainer/main.py", line 7, in <module>\n'
            '  File "/srv/venv/lib/python3.11/site-packages/torch/x.py", line 3, in wait\n'
            "ValueError: bad\n",
            (RAISED, "bad", "/srv/venv/lib/python3.11/site-packages/trainer/main.py:7"),
        ),
        # A console script only calls the program.
        (
            HEADER + '  File "/srv/venv/bin/trainer", line 8, in <module>\n'
            '  File "/srv/venv/lib/python3.11/site-packages/trainer/main.py", line 7, in main\n'
            "ValueError: bad\n",
            (RAISED, "bad", "/srv/venv/lib/python3.11/site-packages/trainer/main.py:7 in main"),
        ),
        # A user's program may well be in a directory bin.
        (
            HEADER + '  File "/home/u/bin/trainer", line 8, in <module>\n'
            '  File "/srv/venv/lib/python3.11/site-packages/torch/x.py", line 3, in wait\n'
            "ValueError: bad\n",
            (RAISED, "bad", "/home/u/bin/trainer:8"),
        ),
        # `python -c`.
        (
            HEADER + '  File "<string>", line 1, in <module>\n'
            '  File "/usr/lib/python3.11/json/decoder.py", line 3, in decode\nValueError: bad\n',
            (RAISED, "bad", "<string>:1"),
        ),
    ],
)  # fmt: skip
def test_exception_is_extracted_from_output_not_in_the_samples(
    text: str, expected: tuple[FailureKind, str, str] | None
) -> None:
    report = from_stderr(text)
    if expected is None:
        assert report is None
    else:
        assert report is not None
        kind, message, where = expected
        assert (report.kind, report.where) == (kind, where)
        assert report.message.startswith(message)


FROM = "\nThe above exception was the direct cause of the following exception:\n\n"
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"
READ = HEADER + '  File "/srv/job/data.py", line 4, in read\n    open(path)\n'
LOAD = HEADER + '  File "/srv/job/data.py", line 7, in load\n    read()\n'
NO_FILE = "FileNotFoundError: [Errno 2] No such file or directory: '/data/x'"


@pytest.mark.parametrize(
    ("text", "cause", "where", "interrupted"),
    [
        (read("chain-3.11"),
         "FileNotFoundError: [Errno 2] No such file or directory: '/data/vocab.json'",
         "/srv/job/train.py:4 in vocab", False),
        (READ + NO_FILE + "\n" + DURING + MAIN + "OSError: no data\n", NO_FILE,
         "/srv/job/data.py:4 in read", False),
        # Lines in libraries aren't the script's.
        (read("torch_enospc-3.11"), "RuntimeError: basic_ios::clear: iostream error", "", False),
        (read("ray_cause-3.11"), "KeyError: 'a'", "", False),
        # An exception in a loader process, with its cause.
        (MAIN + "ValueError: Caught ValueError in DataLoader worker process 0.\nOriginal " + READ
         + NO_FILE + "\n" + FROM + LOAD + "ValueError: bad row\n", NO_FILE,
         "/srv/job/data.py:4 in read", False),
        # A single exception, shown as another process raised it.
        (read("futures-3.11"), "", "", False),
        (read("torch_collate-3.11"), "", "", False),
        (MAIN + "ValueError: bad\n", "", "", False),
        # A traceback from another machine in the message, and one that can't be recognised as such.
        (MAIN + "RemoteError: the worker failed\n" + READ + NO_FILE + "\n", NO_FILE,
         "/srv/job/data.py:4 in read", False),
        (MAIN + "RemoteError: the worker failed\n\n" + READ + NO_FILE + "\n", "", "", False),
        # No cause, but a different location, the group's.
        (read("group-3.11"), "", "/srv/job/train.py:7", False),
        # The last exception contains the first one's message.
        (READ + NO_FILE + "\n" + FROM + MAIN + f"OSError: no {NO_FILE[19:]}\n", "", "", False),
        # No errors.
        (READ + "StopIteration\n" + DURING + MAIN + "ValueError: no data\n", "", "", False),
        (READ + "StopIteration\n" + FROM + MAIN + "RuntimeError: generator raised StopIteration\n",
         "StopIteration", "/srv/job/data.py:4 in read", False),
        (READ + "SystemExit: 143\n" + FROM + MAIN + "OSError: no data\n", "", "", True),
        (READ + "SystemExit: 143\n" + DURING + MAIN + "OSError: no data\n", "", "", True),
        (READ + NO_FILE + "\n" + DURING + LOAD + "KeyboardInterrupt\n" + DURING + MAIN
         + "OSError: no data\n", NO_FILE, "/srv/job/data.py:4 in read", True),
        # The file buffer's own attempt to write, in C, has no traceback.
        (READ + NO_FILE + "\n" + DURING + LOAD + "OSError: disk full\n" + DURING
         + "OSError: disk full\n" + DURING + MAIN + "OSError: disk full\n",
         NO_FILE, "/srv/job/data.py:4 in read", False),
        (MAIN + "KeyboardInterrupt\n", "", "", True),
        (MAIN + "GeneratorExit\n", "", "", False),
    ],
)  # fmt: skip
def test_first_error_in_an_exception_chain_is_the_cause(
    text: str, cause: str, where: str, interrupted: bool
) -> None:
    report = from_stderr(text)
    assert report is not None
    assert (report.cause, report.cause_where) == (cause, where)
    assert report.is_interrupted == interrupted


@pytest.mark.parametrize(
    "text",
    [
        # In the data loader: the message contains another process's frames.
        MAIN + "ValueError: Caught ValueError in DataLoader worker process 0.\nOriginal " + READ
        + NO_FILE + "\n" + FROM + LOAD + "ValueError: bad row\n",
        # A loader in DataParallel.
        MAIN + "ValueError: Caught ValueError in replica 0 on device 0.\nOriginal " + HEADER
        + "ValueError: Caught ValueError in DataLoader worker process 0.\nOriginal " + LOAD
        + "ValueError: bad row\n",
        # torch.multiprocessing.spawn.
        MAIN + "torch.multiprocessing.spawn.ProcessRaisedException: \n\n"
        "-- Process 1 terminated with the following error:\n" + LOAD + "ValueError: bad row\n",
        # A pool.
        'multiprocessing.pool.RemoteTraceback: \n"""\n' + LOAD + 'ValueError: bad row\n"""\n'
        + FROM + MAIN + "ValueError: bad row\n",
        # A logger that writes it on one line.
        'level=error exc="' + json.dumps(LOAD + "ValueError: bad row")[1:] + ' step=3\n',
        '2026-01-02 ERROR bad ' + (LOAD + "ValueError: bad row").replace("\n", "\\n") + "\n",
    ],
    ids=["loader", "replica", "spawn", "pool", "quoted", "escaped"],
)  # fmt: skip
def test_child_process_exceptions_are_reported_as_the_workers_own(text: str) -> None:
    report = from_stderr(text)
    assert report is not None
    assert (report.type, report.message) == ("ValueError", "bad row")
    assert report.where == "/srv/job/data.py:7 in load"
    assert HEADER.rstrip() in report.lines[:2]


@pytest.mark.parametrize("file", ["pandas/_libs/hashtable_class_helper.pxi", "_mt19937.pyx"])
def test_location_is_in_the_script_if_cython_code_raises(file: str) -> None:
    """The paths of files compiled by Cython are relative."""
    report = from_stderr(f"{MAIN}  File \"{file}\", line 7, in get_item\nKeyError: 'label'\n")
    assert report is not None
    assert report.where == "/srv/job/train.py:9"


def test_location_is_in_the_script_if_a_library_traceback_is_quoted() -> None:
    text = (
        MAIN + "ValueError: Caught ValueError in DataLoader worker process 0.\nOriginal " + HEADER
    )
    text += '  File "/srv/venv/lib/python3.11/site-packages/torch/x.py", line 3, in wait\nE: bad\n'
    report = from_stderr(text + FROM + MAIN.replace("9", "19") + "RuntimeError: step 3 failed\n")
    assert report is not None
    assert (report.type, report.where) == ("RuntimeError", "/srv/job/train.py:19")
    assert (report.cause, report.cause_where) == ("E: bad", "/srv/job/train.py:9")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (LOAD + "ValueError: bad\n", PRINTED),  # traceback.print_exc() in load
        (READ + "KeyError: 'a'\n" + DURING + LOAD + "ValueError: bad\n", PRINTED),
        (READ + "KeyError: 'a'\n" + DURING + MAIN + "ValueError: bad\n", RAISED),
        ("ERROR:root:bad\n" + LOAD + "ValueError: bad\n", PRINTED),
        # The text before it is missing.
        (LOAD.removeprefix(HEADER) + "ValueError: bad\n", RAISED),
        # hydra omits the frames that started the program, and exits.
        ("Error executing job with overrides: ['lr=1']\n" + LOAD + "ValueError: bad\n\n"
         "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n", RAISED),
        (HEADER + '  File "/usr/lib/python3.10/runpy.py", line 196, in _run_module_as_main\n'
         '  File "/srv/job/train.py", line 9, in <module>\nValueError: bad\n', RAISED),
        (HEADER + "ValueError: bad\n", RAISED),
    ],
)  # fmt: skip
def test_traceback_without_a_module_frame_was_printed_by_the_program(
    text: str, kind: FailureKind
) -> None:
    """Python itself prints all frames, starting with the module's."""
    report = from_stderr(text)
    assert report is not None
    assert (report.kind, report.message) == (kind, "bad")


def test_exception_is_not_fatal_if_the_program_continued() -> None:
    text = MAIN + "ValueError: bad\nstep 3\n"
    report = from_stderr(text, ProgramFacts(went_on=True))
    assert report is not None
    assert (report.kind, report.message) == (PRINTED, "bad")
    for went_on in (None, False):
        report = from_stderr(text, ProgramFacts(went_on))
        assert report is not None
        assert report.kind is RAISED


@pytest.mark.parametrize(
    ("file", "script", "kind"),
    [
        ("/srv/job/train.py", "train.py", RAISED),
        ("/srv/job/convert.py", "train.py", PRINTED),
        ("<string>", "train.py", PRINTED),
        ("/srv/job/convert.py", "", RAISED),  # -m, a shell script
        ("/srv/relight/worker/main_module.py", "train.py", RAISED),  # --preload
    ],
)
def test_traceback_starting_in_another_program_is_from_another_process(
    file: str, script: str, kind: FailureKind
) -> None:
    text = f'{HEADER}  File "{file}", line 9, in <module>\nValueError: bad\n'
    report = from_stderr(text, ProgramFacts(script=script))
    assert report is not None
    assert report.kind is kind


@pytest.mark.parametrize(
    "before",
    [
        "Exception in thread prefetch (read):",
        "Exception ignored in: <function Reader.__del__ at 0x7f>",
        "Process SpawnProcess-1:",
        "ERROR:root:training failed",
        "2026-01-02 03:04:05 ERROR training failed",
    ],
)
def test_line_before_a_printed_traceback_is_kept(before: str) -> None:
    report = from_stderr(f"{before}\n{LOAD}ValueError: bad\n")
    assert report is not None
    assert (report.kind, report.lines[:2]) == (PRINTED, (before, HEADER.rstrip()))


LOGGED = """\
CRITICAL:root:run failed
Traceback (most recent call last):
  File "/srv/job/train.py", line 16, in <module>
    main()
  File "/srv/job/train.py", line 13, in main
    raise ValueError("num_heads 12 does not divide d_model 1000")
ValueError: num_heads 12 does not divide d_model 1000
"""
IGNORED = """\
Exception ignored in: <generator object stream at 0x7f3b8f132670>
Traceback (most recent call last):
  File "/srv/job/train.py", line 9, in stream
RuntimeError: cannot join reader thread before it is started
"""
AT_EXIT = """\
Exception ignored in atexit callback: <function <lambda> at 0x7f64101e5ee0>
Traceback (most recent call last):
  File "/srv/job/train.py", line 6, in <lambda>
    atexit.register(lambda: socket.create_connection(("127.0.0.1", 9)))
ConnectionRefusedError: [Errno 111] Connection refused
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LOGGED + IGNORED, "ValueError"),
        (LOGGED + AT_EXIT + IGNORED, "ValueError"),
        (LOGGED + "step 3\n" + IGNORED, "RuntimeError"),  # the program continued
        (IGNORED + AT_EXIT, "ConnectionRefusedError"),
        (IGNORED + LOGGED + "bye\n", "ValueError"),
    ],
)
def test_exception_ignored_at_exit_does_not_hide_a_logged_one(text: str, expected: str) -> None:
    report = from_stderr(text)
    assert report is not None
    assert (report.kind, report.type) == (PRINTED, expected)


def test_exception_that_quotes_another_traceback_is_the_one_raised() -> None:
    told = f"{MAIN}RuntimeError: worker 3 failed:\n{LOAD}ZeroDivisionError: division by zero\n"
    report = from_stderr(told)
    assert report is not None
    assert (report.kind, report.type, report.where) == (
        RAISED,
        "RuntimeError",
        "/srv/job/train.py:9",
    )
    assert headline(report, 200) == "worker 3 failed: ZeroDivisionError: division by zero"


GATHERED = """\
Traceback (most recent call last):
  File "/srv/job/train.py", line 21, in <module>
    if e: raise RuntimeError(f"rank {r} failed:\\n{e}")
          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
RuntimeError: rank 1 failed:
Traceback (most recent call last):
  File "/srv/job/train.py", line 10, in <module>
    step()
  File "/srv/job/train.py", line 7, in step
    return 1 / (1 - rank)
           ~~^~~~~~~~~~~~
ZeroDivisionError: division by zero

"""
CHECKS = """\
Traceback (most recent call last):
  File "/srv/job/train.py", line 18, in <module>
    raise RuntimeError("checks failed on ranks " + str(bad) + "\\n" + "\\n".join(errors))
RuntimeError: checks failed on ranks [2, 3]
Traceback (most recent call last):
  File "/srv/job/train.py", line 10, in <module>
    check()
  File "/srv/job/train.py", line 7, in check
    assert rank < 2, "tokenizer hash 9f3a differs"
AssertionError: tokenizer hash 9f3a differs

Traceback (most recent call last):
  File "/srv/job/train.py", line 10, in <module>
    check()
  File "/srv/job/train.py", line 6, in check
    raise KeyError("vocab")
KeyError: 'vocab'
"""
GOLDEN = """\
Traceback (most recent call last):
  File "/srv/job/train.py", line 8, in <module>
    assert golden == "", "golden output differs:\\n" + golden
AssertionError: golden output differs:
[rank0]: Traceback (most recent call last):
[rank0]:   File "old.py", line 3, in <module>
[rank0]: ValueError: recorded in golden log
relight: rank 0 raised ValueError: recorded
"""
CHILD = """\
Traceback (most recent call last):
  File "/srv/job/train.py", line 11, in <module>
    preprocess(rank)
  File "/srv/job/train.py", line 10, in preprocess
    raise RuntimeError(f"preprocess of shard {shard} failed with exit code {code}:\\n{stderr}")
RuntimeError: preprocess of shard 1 failed with exit code 1:
Traceback (most recent call last):
  File "<string>", line 3, in <module>
  File "<string>", line 2, in load
ImportError: libsndfile.so.1: cannot open shared object file

"""
SAME_TYPE = GATHERED.replace("ZeroDivisionError", "RuntimeError")


@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
@pytest.mark.parametrize(
    ("text", "expected", "where"),
    [
        (GATHERED, "RuntimeError: rank 1 failed: ZeroDivisionError: division by zero", "21"),
        (SAME_TYPE, "RuntimeError: rank 1 failed: RuntimeError: division by zero", "21"),
        (CHECKS, "RuntimeError: checks failed on ranks [2, 3]", "18"),
        (GOLDEN, "AssertionError: golden output differs: ValueError: recorded in golden log", "8"),
        (CHILD, "RuntimeError: preprocess of shard 1 failed with exit code 1: "
         "ImportError: libsndfile.so.1: cannot open shared object file", "10 in preprocess"),
    ],
    ids=["gathered", "same type", "several", "golden", "child"],
)  # fmt: skip
def test_quoted_traceback_of_a_whole_program_is_part_of_the_message(
    text: str, expected: str, where: str, prefix: str
) -> None:
    printed = "".join(
        prefix + line if line.strip() else line for line in text.splitlines(keepends=True)
    )
    report = from_stderr(printed)
    assert report is not None
    assert report.kind is RAISED
    assert f"{report.type}: {headline(report, 200)}" == expected
    assert report.where == f"/srv/job/train.py:{where}"
    assert printed_before(printed) is None
    assert not any(besides(printed)[1])


def test_failure_of_logging_is_not_reported() -> None:
    """Python prints it, with the exception that was to be logged as its context."""
    failed = f"{MAIN}ZeroDivisionError: division by zero\n"
    context = "\nDuring handling of the above exception, another exception occurred:\n\n"
    closed = 'Traceback (most recent call last):\n  File "/usr/lib/python3.11/logging/__init__.py",'
    closed += " line 1113, in emit\nValueError: I/O operation on closed file.\nCall stack:\n"
    assert printed_before(f"--- Logging error ---\n{failed}{context}{closed}{failed}") is None
    assert printed_before(f"Exception in thread a:\n{closed}{failed}") is not None


def test_exception_of_torch_ends_with_its_prefix() -> None:
    """torch.distributed prints one uncaught exception with a prefix, and nothing else."""
    message = f"{MAIN}RuntimeError: evaluation failed\n{LOAD}KeyError: 'bleu'\nsee eval.log"
    prefixed = "".join(f"[rank0]: {line}\n" for line in message.split("\n"))
    text = f"{LOAD}OSError: retried\n{prefixed}bye\n"
    report = from_stderr(text)
    assert report is not None
    assert (report.kind, report.message) == (RAISED, "evaluation failed")
    assert (report.cause, report.cause_where) == ("KeyError: 'bleu'", "/srv/job/data.py:7 in load")
    assert [line for line in besides(text)[1] if line] == ["bye"]


def test_exceptions_of_two_ranks_that_a_worker_started_are_separate() -> None:
    first, second = (
        "".join(f"[rank{rank}]: {line}\n" for line in f"{MAIN}{said}".split("\n"))
        for rank, said in ((0, "ValueError: bad"), (1, "RuntimeError: Connection closed"))
    )
    report = from_stderr(first + second)
    assert report is not None
    assert (report.type, report.cause) == ("RuntimeError", "")


def test_fatal_exception_after_a_printed_one_is_not_part_of_its_message() -> None:
    for printed in ("RuntimeError: no data", "RuntimeError: no data\nsee data.log"):
        report = from_stderr(f"{MAIN}{printed}\n{MAIN}ValueError: bad\n")
        assert report is not None
        assert (report.type, report.message) == ("ValueError", "bad")


GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/srv/job/train.py", line 23, in <module>
  |     async with asyncio.TaskGroup() as tg:
  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)
"""
CANCELLED = (
    GROUP
    + """\
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/srv/job/train.py", line 16, in heartbeat
    |     await asyncio.sleep(0.2)
    | asyncio.exceptions.CancelledError
    |
    | During handling of the above exception, another exception occurred:
    |
    | Traceback (most recent call last):
    |   File "/srv/job/train.py", line 18, in heartbeat
    |     raise ConnectionError("heartbeat: could not deregister from tracker")
    | ConnectionError: heartbeat: could not deregister from tracker
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "/srv/job/train.py", line 11, in fetch
    |     raise ValueError(f"sample {i} has negative length {n}")
    | ValueError: sample 17 has negative length -7
    +------------------------------------
"""
)
CHAINED = (
    GROUP
    + """\
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/srv/job/train.py", line 9, in get
    |     await asyncio.open_connection("127.0.0.1", 9)
    | ConnectionRefusedError: [Errno 111] Connect call failed ('127.0.0.1', 9)
    |
    | The above exception was the direct cause of the following exception:
    |
    | Traceback (most recent call last):
    |   File "/srv/job/train.py", line 11, in get
    |     raise DownloadError(f"part {i} failed") from e
    | DownloadError: part 0 failed
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "/srv/job/train.py", line 7, in get
    |     if i == 1: raise ValueError("checksum of part 1 is wrong")
    | ValueError: checksum of part 1 is wrong
    +------------------------------------
"""
)
NESTED = (
    GROUP
    + """\
  +-+---------------- 1 ----------------
    | ExceptionGroup: dataset (1 sub-exception)
    +-+---------------- 1 ----------------
      | Traceback (most recent call last):
      |   File "/srv/job/train.py", line 8, in <lambda>
      |     for f in (lambda: open("tokens.bin"), lambda: len(5)):
      | FileNotFoundError: [Errno 2] No such file or directory: 'tokens.bin'
      +------------------------------------
    +---------------- 2 ----------------
    | KeyError: 5
    |
    | During handling of the above exception, another exception occurred:
    |
    | TypeError: object of type 'int' has no len()
    +------------------------------------
"""
)
CAUSED_BY_GROUP = (
    GROUP
    + """\
  +-+---------------- 1 ----------------
    | ExceptionGroup: dataset (1 sub-exception)
    +-+---------------- 1 ----------------
      | KeyError: 'a'
      +------------------------------------
    |
    | The above exception was the direct cause of the following exception:
    |
    | Traceback (most recent call last):
    |   File "/srv/job/train.py", line 8, in load
    |     raise ValueError("no data") from e
    | ValueError: no data
    +------------------------------------
"""
)
MANY = (
    GROUP.replace("2", "21")
    + "  +-+---------------- 1 ----------------\n"
    + "".join(
        f"    | KeyError: 'shard {n}'\n    +---------------- {n + 1} ----------------\n"
        for n in range(1, 15)
    )
    + """\
    | KeyError: 'shard 15'
    +---------------- ... ----------------
    | and 6 more exceptions
    +------------------------------------
"""
)


@pytest.mark.parametrize(
    ("text", "expected", "where"),
    [
        (CANCELLED, "(2 sub-exceptions): ValueError: sample 17 has negative length -7; "
         "ConnectionError: heartbeat: could not deregister from tracker", "11 in fetch"),
        (CHAINED, "(2 sub-exceptions): DownloadError: part 0 failed; "
         "ValueError: checksum of part 1 is wrong", "11 in get"),
        (NESTED, "(2 sub-exceptions): FileNotFoundError: [Errno 2] No such file or directory: "
         "'tokens.bin'; TypeError: object of type 'int' has no len()", "8 in <lambda>"),
        (CAUSED_BY_GROUP, "(2 sub-exceptions): ValueError: no data", "8 in load"),
        (MANY, "(21 sub-exceptions): KeyError: 'shard 1'; KeyError: 'shard 2'; "
         "KeyError: 'shard 3'; and 18 more", "213"),
    ],
    ids=["cancelled", "chained", "nested", "caused by a group", "many"],
)  # fmt: skip
def test_exceptions_in_a_group_are_named_with_the_most_relevant_first(
    text: str, expected: str, where: str
) -> None:
    report = from_stderr(text)
    assert report is not None
    assert headline(report, 400) == f"unhandled errors in a TaskGroup {expected}"
    assert report.where == f"/srv/job/train.py:{where}"
    assert blame.determine(report, ()) is blame.Blame.NOBODY


def test_group_that_is_the_cause_is_named_with_its_exceptions() -> None:
    report = from_stderr(CHAINED + FROM + MAIN + "PipelineError: stopped\n")
    assert report is not None
    assert report.cause.endswith(
        "(2 sub-exceptions): DownloadError: part 0 failed; ValueError: checksum of part 1 is wrong"
    )


def test_source_line_is_not_mistaken_for_a_traceback() -> None:
    source = (
        f"    raise RuntimeError('failed:\\n{HEADER.rstrip()}\\n  File \"x.py\", line 1, in f')"
    )
    report = from_stderr(f"{MAIN}{source}\nRuntimeError: bad\n")
    assert report is not None
    assert (report.type, report.where) == ("RuntimeError", "/srv/job/train.py:9")


THREAD = "Exception in thread prefetch:\n" + LOAD + "OSError: bad disk\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (THREAD + MAIN + "queue.Empty\n", "OSError"),
        (THREAD + MAIN + "queue.Empty\nException ignored in: <x>\n" + MAIN + "E: x\n", "OSError"),
        (THREAD + "Fatal Python error: Aborted\n\n", "OSError"),
        (THREAD, None),
        (MAIN + "ValueError: bad\n", None),
        (read("loguru-3.11"), None),  # logged and re-raised
        ("", None),
    ],
)
def test_earlier_exception_in_a_thread_is_found(text: str, expected: str | None) -> None:
    report = printed_before(text)
    assert (report and report.type) == expected
    assert report is None or report.kind is PRINTED


MISMATCHES = {
    "alike": [f"tensor[{n}] = {n * 0.5}" for n in range(15_000)],
    "indented": [f"    {'xyz'[n % 3] * n}" for n in range(1_000)],
    "pydantic": [f"{'  ' * (n % 2)}layers.{n // 2}.{n % 2}" for n in range(400)],
    "two kinds": [f"{'weight' if n % 2 else 'bias'} of layer {n}: {n / 7}" for n in range(180)],
}


@pytest.mark.parametrize("name", MISMATCHES)
@pytest.mark.parametrize("most", [0, 40])
def test_long_exception_message_keeps_type_first_line_and_location(name: str, most: int) -> None:
    """Omitted lines are counted."""
    message = MISMATCHES[name]
    text = "\n".join([f"{MAIN}ValueError: does not fit:", *message, ""])
    report = from_stderr(text)
    assert report is not None
    assert (report.kind, report.type) == (RAISED, "ValueError")
    assert report.message.startswith(f"does not fit:\n{message[0].rstrip()}")
    assert report.where == "/srv/job/train.py:9"
    assert len(report.lines) <= 200
    lines = excerpt(report.lines, most) if most else report.lines
    assert "ValueError: does not fit:" in lines
    left_out = [
        int(number.replace(",", "")) for number in re.findall(r"… ([\d,]+) more", str(lines))
    ]
    assert sum(left_out) + sum(line in message for line in lines) == len(message)


def test_exception_followed_by_a_lot_of_output_is_not_fatal() -> None:
    steps = "".join(f"step {n}: loss {n / 7}\n" for n in range(300))
    report = from_stderr(f"{MAIN}ImportError: No module named 'apex'\n{steps}")
    assert report is not None
    assert report.kind is PRINTED


def test_output_printed_during_exit_does_not_make_exception_nonfatal() -> None:
    """Some libraries print a lot while exiting, and so may any program that was seen exiting."""
    noise = "".join(f"[W tracing.cpp:{n}] Warning: record {n} dropped\n" for n in range(300))
    steps = "".join(f"removed temporary file {n}\n" for n in range(300))
    for text, went_on in ((noise, None), (steps, False)):
        report = from_stderr(f"{MAIN}KeyError: 'a'\n{text}", ProgramFacts(went_on))
        assert report is not None
        assert (report.kind, report.message) == (RAISED, "'a'")


@pytest.mark.parametrize(
    ("source", "exception", "message"),
    [
        ("    raise ValueError('bad')", "ValueError: bad", "bad"),
        ('    raise my.Error("it\'s") from None', "my.Error: it's", "it's"),
        ("    assert x, 'a, b'", "AssertionError: a, b", "a, b"),
        ("    assert x\n           ^", "AssertionError", ""),
        ("    raise KeyboardInterrupt", "KeyboardInterrupt", ""),
        ("    import apex", "ModuleNotFoundError: No module named 'apex'",
         "No module named 'apex'"),
        ("    x['a']", "KeyError: 'a'", "'a'"),
        ("    open(x)", "FileNotFoundError: [Errno 2] No such file or directory: 'x'",
         "[Errno 2] No such file or directory: 'x'"),
        ("    raise ValueError(f'lr {lr} must be > 0')", "ValueError: lr 0 must be > 0",
         "lr 0 must be > 0"),
        ("    raise ValueError(f'{text}')", "ValueError: bad", "bad\nbye"),
        ("    raise ValueError(text)", "ValueError: bad", "bad\nbye"),
        ("    raise ValueError('bad' + text)", "ValueError: bad", "bad\nbye"),
        ("    raise ValueError('bad\\nbye')", "ValueError: bad", "bad\nbye"),
        ("    raise ValueError(text)", "ValueError: ", "\nbye"),
    ],
)  # fmt: skip
def test_line_after_a_complete_exception_message_is_not_part_of_it(
    source: str, exception: str, message: str
) -> None:
    """For example, a program prints the exception and "bye", and exits before it can be inspected.
    A message is complete if it is found in the source, comes from Python itself, or is empty.
    """
    text = f"{MAIN}{source}\n{exception}\nbye"
    report = from_stderr(text)
    assert report is not None
    assert report.message == message
    assert besides(text)[1] == ([] if "bye" in message else ["bye"])


@pytest.mark.parametrize("later", ["step 7\n" * 60, " 10%|#   | 1/10\n" * 60])
def test_output_after_an_exception_message_is_not_part_of_it(later: str) -> None:
    """A message has at most 100 dissimilar lines and contains no progress bar."""
    message = "".join(f"{chr(97 + n % 26) * (n + 1)}\n" for n in range(100))
    report = from_stderr(MAIN + "ValueError: bad\n" + message + later)
    assert report is not None
    assert report.kind is PRINTED
    assert "%" not in report.message


@pytest.mark.parametrize("head_size", [120, 200, 16 * 1024])
@pytest.mark.parametrize("tail_size", [30, 64 * 1024])
@pytest.mark.parametrize("name", MISMATCHES)
def test_truncated_message_keeps_its_beginning_and_end(
    name: str, tail_size: int, head_size: int
) -> None:
    message = MISMATCHES[name]
    text = "\n".join([f"{MAIN}ValueError: does not fit:", *message, ""])
    tail_at = max(len(text) - tail_size, head_size)
    head, middle, tail = text[:head_size], text[head_size:tail_at], text[tail_at:]
    kept = keep(head, tail, middle.count("\n")) if middle else text
    report = from_stderr(kept)
    assert report is not None
    assert (report.kind, report.type) == (RAISED, "ValueError")
    assert report.where == "/srv/job/train.py:9"
    marks = [line for line in kept.split("\n") if line.endswith("more lines …")]
    left_out = sum(int(line.split()[1].replace(",", "")) for line in marks)
    assert kept.count("\n") + left_out - len(marks) == text.count("\n")


def test_truncated_huge_line_keeps_its_beginning() -> None:
    text = f"{MAIN}ValueError: bad {'x' * 300_000}\n"
    report = from_stderr(keep(text[: 16 * 1024], text[-64 * 1024 :], 0))
    assert report is not None
    assert (report.kind, report.type, report.where) == (RAISED, "ValueError", "/srv/job/train.py:9")
    assert report.message.startswith("bad xxx")


def test_deep_recursion_traceback_keeps_outermost_and_innermost_frames() -> None:
    frames = "".join(
        f'  File "/srv/job/train.py", line {n % 2 + 3}, in f\n    f({n})\n' for n in range(1_000)
    )
    report = from_stderr(f"{MAIN}{frames}RecursionError: too deep\n")
    assert report is not None
    assert (report.kind, report.where) == (RAISED, "/srv/job/train.py:4 in f")
    assert len(report.lines) <= 200
    (mark,) = [line for line in report.lines if "…" in line]
    frames_left = sum(line.startswith("  File") for line in report.lines)
    assert mark == f"  … {1_001 - frames_left} frames …"
    shown = excerpt(report.lines, 10)
    (mark,) = [line for line in shown if "…" in line]
    frames_left = sum(line.startswith("  File") for line in shown)
    assert mark == f"  … {1_001 - frames_left} frames …"


def test_besides_function_returns_lines_around_the_last_traceback() -> None:
    text = f"a\n{THREAD}b\n{MAIN}ValueError: bad\nFATAL: c\n"
    before, after = besides(text)
    assert before == ["a", "b"]
    assert [line for line in after if line] == ["FATAL: c"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"message": {"message": "ValueError: a\nb",
                      "extraInfo": {"py_callstack": MAIN + "ValueError: a\nb\n"}}},
         ("ValueError", "a\nb", "/srv/job/train.py:9")),
        ({"message": {"message": "ValueError: a"}}, ("ValueError", "a", "")),
        ({"message": {"message": "GPU 3 is gone", "extraInfo": {"py_callstack": 7}}},
         ("", "GPU 3 is gone", "")),
        ({"message": {"message": "", "extraInfo": {"py_callstack": MAIN + "E: a\n"}}},
         ("E", "a", "/srv/job/train.py:9")),
        ({"message": "GPU 3 is gone", "timestamp": 1}, ("", "GPU 3 is gone", "")),
        ({"message": "E: \ud800\u001b[2J\u202e"}, ("E", "\ufffd\ufffd", "")),
        ({"message": ""}, None),
        ({"message": {"message": 3}}, None),
        ({"message": None}, None),
        ({"error": "x"}, None),
        ([1], None),
        ("text", None),
        (None, None),
    ],
)  # fmt: skip
def test_both_schemas_of_torch_error_files_are_read(
    content: object, expected: tuple[str, str, str] | None
) -> None:
    """A nonsensical file isn't a report."""
    report = from_error_file(json.dumps(content))
    if expected is None:
        assert report is None
    else:
        assert report is not None
        assert (report.kind, report.type, report.message, report.where) == (
            FailureKind.RECORDED,
            *expected,
        )


@pytest.mark.parametrize("text", ["", "{", "nan", "[" * 100_000, '{"message": ' + "9" * 5000 + "}"])
def test_error_file_without_json_is_not_read_as_a_report(text: str) -> None:
    assert from_error_file(text) is None


def test_cleaned_text_contains_no_cursor_hidden_or_bidi_controls() -> None:
    """Text in any script is kept."""
    link = "\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\"
    assert (
        clean(f"\x1b[1;31mred\x1b[0m \x1b]0;title\x07{link} \x1bM\tend\r\n") == "red link    end\n"
    )
    assert clean("50%\r100%\n") == "50%\n100%\n"
    assert clean("a\x00b\x9b2J\u202ec\u200bd\ud800") == "a\ufffdb\ufffd2J\ufffdc\ufffdd\ufffd"
    assert clean("größe 日本語 🏖️ \ufffd") == "größe 日本語 🏖️ \ufffd"
    assert clean("\x1b[12") == "12"


def test_last_nonempty_lines_of_output_are_kept() -> None:
    """The prefix added by torch is removed."""
    assert last_lines("a\n\nb\n[rank0]: c\n \n") == ("a", "b", "c")
    assert last_lines("") == ()


# Control characters, line breaks, lone surrogates, and characters that change the text direction.
UNFIT = re.compile(
    "[\0-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\u202a-\u202e\u2066-\u2069\u200e\u200f]"
)


def check(text: str) -> None:
    """Check that reports on a text are safe to print and that excerpts keep to their size."""
    last_lines(text)
    words(text, text)
    printed_before(text)
    record = json.dumps({"message": {"message": text, "extraInfo": {"py_callstack": text}}})
    for report in (from_stderr(text), from_error_file(record), from_error_file(text)):
        if report is None:
            continue
        assert len(report.lines) <= 200
        parts = (report.type, report.where, report.source, report.cause, report.cause_where)
        for part in (*parts, *report.lines):
            assert not UNFIT.search(part), repr(part)
        for rows in (3, 7, 12):
            assert count_rows(excerpt(report.lines, rows)) <= rows


PIECES = st.sampled_from(
    [line for name in SAMPLES for line in read(name).split("\n")]
    + [
        "Traceback (most recent call last):",
        "  + Exception Group Traceback (most recent call last):",
        "Fatal Python error: x",
        "terminate called after throwing an instance of 'x'",
        "  what():  ",
        "\x1b[", "\x1b]0;", "\r", "\ud800", '  File "', '", line 1, in ',
    ]
)  # fmt: skip
LINES = st.lists(st.one_of(PIECES, st.text(max_size=20)), max_size=40)


@settings(max_examples=400)
@given(LINES.map("\n".join))
def test_traceback_lines_in_any_order_are_parsed_safely(text: str) -> None:
    check(text)


@settings(max_examples=400)
@given(
    st.sampled_from(list(SAMPLES)),
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 300), st.text(max_size=5)), max_size=4),
)
def test_mutated_traceback_is_parsed_safely(name: str, edits: list[tuple[int, int, str]]) -> None:
    """Text is cut, removed and inserted."""
    text = read(name)
    for position, size, new in edits:
        position %= len(text) + 1
        text = text[:position] + new + text[position + size :]
    check(text)


@settings(max_examples=100)
@given(st.sampled_from(list(SAMPLES)), LINES)
def test_exception_is_found_after_any_output(name: str, before: list[str]) -> None:
    report = from_stderr(read(name))
    assert report is not None
    later = from_stderr("\n".join([*before, *["epoch done"] * 12, ""]) + read(name))
    assert later is not None
    if report.kind is RAISED:
        assert (later.type, later.where) == (report.type, report.where)


FULL = """\
Traceback (most recent call last):
  File "/x/site-packages/torch/serialization.py", line 1312, in _save
    zip_file.write_record(name, storage, num_bytes)
OSError: [Errno 28] No space left on device

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/srv/job/train.py", line 9, in save
    torch.save(state, file)
  File "/x/site-packages/torch/serialization.py", line 854, in __exit__
    self.file_like.write_end_of_file()
RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/srv/job/train.py", line 11, in <module>
    save()
  File "/srv/job/train.py", line 8, in save
    with open(path, "wb") as file:
OSError: [Errno 28] No space left on device
"""


def test_exception_raised_twice_is_located_where_it_was_first_raised() -> None:
    """A file tries to write again when it is closed."""
    report = from_stderr(FULL)
    assert report is not None
    assert (report.where, report.cause) == ("/srv/job/train.py:9 in save", "")
    shown = excerpt(report.lines, 12)
    assert "  … 1 more exception and 2 frames …" in shown  # not all of them are torch's


@pytest.mark.parametrize("name", ["futures-3.11", "pool-3.11"])
def test_traceback_from_another_process_is_not_part_of_an_earlier_message(name: str) -> None:
    before = ['  File "/srv/job/train.py", line 10, in data', "SyntaxError: invalid syntax"]
    report, later = (
        from_stderr(read(name)),
        from_stderr("\n".join([*before, "epoch done", read(name)])),
    )
    assert report is not None
    assert later is not None
    assert (later.type, later.where) == (report.type, report.where)


HOSTILE = [
    HEADER, MAIN, HEADER + "A: b\n", "A: b\n", "SyntaxError: x\n", '  File "a", line 1\n',
    '", line 1', '  File "', "Fatal Python error: x\n", "terminate called after 'x'\n  what():\n",
    "  + Exception Group Traceback (most recent call last):\n", "  | A: b\n", "    | ",
    "  +-+---------------- 1 ----------------\n", "╭─ Traceback (most recent call last) ─╮\n",
    "│ a:1 in f\n", "│ ❱ 1 │", "\x1b[", "\x1b]", "\x1b[0;", " ", "\t", "\r", "\n", "^", "~^ ",
    "x.", "x: ", "1", "<", "[rank0]: ", "/lib/python3.1", "x y\n" * 9, "\ud800", "a/bin/",
    "2026-01-02 ERROR",
    "\nDuring handling of the above exception, another exception occurred:\n\n",
    "ray.exceptions.RayTaskError: ray::", "ray::f(pid=1", f"Original {HEADER}", f"A: b:\n{HEADER}",
    f'"{HEADER[:-1]}\\n', "\\n", '\\"', "  … 1 frame of a and ", "│", "╭─ Error ─╮\n",
    "error: ", "0.", "\n\n\n", "[", "a-", "(",
]  # fmt: skip


def seconds_to_read(text: str) -> float:
    """Return the CPU time it takes to read a text."""
    begin = time.thread_time()
    report = from_stderr(text)
    if report is not None:
        excerpt(report.lines, 10)
        headline(report, 100)
    words(text, text)
    printed_before(text)
    return time.thread_time() - begin


def check_linear(first: str, piece: str, size: int) -> None:
    """Check that eight times the text takes about eight times as long; a quadratic parser would
    need 64 times. A busy machine only adds time, so the shortest measurements count.
    """
    short, long = (first + piece * (n // len(piece)) for n in (size // 8, size))
    noise_s = 0.005
    limit_s = 30 * max(min(seconds_to_read(short) for _ in range(5)), noise_s)
    assert any(seconds_to_read(long) < limit_s for _ in range(10)), long[:200]


@pytest.mark.parametrize("first", ["", MAIN], ids=["alone", "after a frame"])
def test_hostile_text_is_parsed_in_linear_time(first: str) -> None:
    """The text is one piece, repeated up to 32 KB."""
    for piece in HOSTILE:
        check_linear(first, piece, 32 * 1024)


@pytest.mark.slow
@pytest.mark.long
def test_adversarial_text_is_parsed_in_linear_time() -> None:
    """The text is any two pieces, alternating up to 32 KB."""
    for one in HOSTILE:
        for other in HOSTILE:
            check_linear("", one + other, 32 * 1024)


STACK = """Fatal Python error: Aborted

Current thread 0x00007f4a4628ab80 (most recent call first):
  File "/home/u/train.py", line 7 in step
"""


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("malloc(): corrupted top size\n", "malloc(): corrupted top size"),
        (
            "python: a.cc:3: f: Assertion `n > 0' failed.\n",
            "python: a.cc:3: f: Assertion `n > 0' failed.",
        ),
        (
            "[rank0]:[E] x.cpp:6] [Rank 0] Watchdog caught\n",
            "[E] x.cpp:6] [Rank 0] Watchdog caught",
        ),
        ("step 7 of 10\n", "Aborted"),
        ("note: asserts are enabled\n", "Aborted"),
        ("WARNING: aborts if the loss is nan\n", "Aborted"),
        ('  File "a.py", line 3, in f\nAssertionError: x\n', "Aborted"),
        ("", "Aborted"),
    ],
    ids=["libc", "assert", "NCCL", "progress", "note", "warning", "traceback", "nothing"],
)
def test_crash_report_includes_the_reason_printed_before_the_abort(
    before: str, message: str
) -> None:
    report = from_stderr(before + STACK)
    assert report is not None
    assert report.kind is FailureKind.CRASHED
    assert report.message.endswith(message)
    assert report.where == "/home/u/train.py:7 in step"


def test_thread_without_frames_does_not_hide_crashed_thread() -> None:
    """Threads of torch's autograd engine or gloo look like this after they have run Python code."""
    text = "Fatal Python error: Segmentation fault\n\n"
    text += "Thread 0x00007f0a (most recent call first):\n  <no Python frame>\n\n"
    text += (
        'Current thread 0x00007f0b (most recent call first):\n  File "/srv/train.py", line 4 in f\n'
    )
    report = from_stderr(text)
    assert report is not None
    assert report.where == "/srv/train.py:4 in f"


def test_only_the_crashed_thread_is_shown() -> None:
    """The newest thread comes first in faulthandler's output."""
    text = """Fatal Python error: Segmentation fault

Thread 0x00007f0a (most recent call first):
  File "/x/site-packages/torch/loop.py", line 9 in _loop

Current thread 0x00007f0b (most recent call first):
  File "/srv/train.py", line 4 in step
  File "/srv/train.py", line 8 in <module>

Thread 0x00007f0c (most recent call first):
  File "/x/other.py", line 1 in run
"""
    report = from_stderr(text)
    assert report is not None
    assert report.where == "/srv/train.py:4 in step"
    assert len(report.lines) == 4


def test_mark_for_further_frames_of_a_crash_is_kept() -> None:
    frame = '  File "/srv/train.py", line 31 in depth\n'
    text = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n"
    )
    report = from_stderr(f"{text}{frame * 100}  ...\n")
    assert report is not None and report.lines[-1] == "  ..."


def test_blank_lines_between_frames_are_removed() -> None:
    """Loguru prints them after each frame."""
    text = (
        "Traceback (most recent call last):\n\n"
        '> File "/srv/job/train.py", line 24, in <module>\n    main()\n\n'
        '  File "/srv/job/train.py", line 11, in main\n    x = y\n\n'
        "KeyError: 'y'\n"
    )
    link = "\nDuring handling of the above exception, another exception occurred:\n\n"
    report = from_stderr(f"{text}{link}{text.replace('KeyError', 'ValueError')}")
    assert report is not None
    assert report.type == "ValueError"
    before, after = "\n".join(report.lines).split(link)
    assert "\n\n" not in f"{before}{after}"
