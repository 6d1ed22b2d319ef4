"""Evidence from the machine about a worker's exit, worded for the report."""

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from relight.base.env import Environment
from relight.core.failure import ErrorReport, FailureKind
from relight.core.workers.worker_command import Command
from relight.flags.arguments import parse, to_spec
from relight.stacks import exit_evidence

HERE = Environment({"PATH": os.defpath})


class Disk:
    """The fields of a statvfs(3) result."""

    def __init__(self, free: int, size: int = 4 << 20, inodes: int = 10, flags: int = 0) -> None:
        self.f_frsize, self.f_flag = 1, flags
        self.f_blocks, self.f_bavail, self.f_bfree = size, free, free
        self.f_files, self.f_ffree = 100, inodes


def command_of(words: list[str]) -> Command:
    """Return the workers' command for these flags, script and arguments."""
    spec = to_spec(parse(words, HERE))
    return Command(
        script=spec.script, script_args=spec.script_args, module=spec.module,
        no_python=spec.no_python, env=HERE, python="", run_path=(), run_id="",
        local_rank_argument=False, agent_store=True, max_restarts=0, signals_to_handle=(),
        virtual_local_rank=False, threads=0, timer_file="", breakpoint={},
    )  # fmt: skip


Disks = Callable[[dict[str, Disk]], None]


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch) -> Disks:
    """Turn these directories into file systems of their own. All others have free space."""
    real = os.stat

    def install(found: dict[str, Disk]) -> None:
        def place(path: str) -> str:
            inside = [each for each in found if os.path.join(path, "").startswith(each + "/")]
            return max(inside, key=len, default="")

        def stat(path: str, *rest: object, **more: object) -> object:
            mounted = place(path) if isinstance(path, str) else ""
            if not mounted:
                return real(path, *rest, **more)  # type: ignore[arg-type]
            fields = list(real(path))
            fields[2] = 1_000_000 + list(found).index(mounted)
            return os.stat_result(fields)

        monkeypatch.setattr(os, "statvfs", lambda path: found.get(place(path), Disk(1 << 30)))
        monkeypatch.setattr(os, "stat", stat)

    return install


TORCH = [
    'File "/usr/lib/train.py", line 9, in save',
    '    torch.save({"w": w}, f"{folder}/step_{step}.pt")',
    "RuntimeError: [enforce fail at inline_container.cc:858] . unexpected pos 704 vs 598",
]


@pytest.mark.parametrize(
    "text",
    [
        "OSError: [Errno 28] No space left on device",
        TORCH[-1],
        "RuntimeError: basic_ios::clear: iostream error",
        "RuntimeError: PytorchStreamWriter failed writing file data/0: file write failed",
        "sqlite3.OperationalError: database or disk is full",
    ],
)
def test_full_filesystem_is_found_from_path_in_traceback(
    disks: Disks, tmp_path: Path, text: str
) -> None:
    disks({str(tmp_path): Disk(0)})
    lines = [f'    torch.save(w, f"{tmp_path}/new/step_{{n}}.pt")', text]
    expected = f"the file system of {tmp_path} is full (0 bytes free of 4 MiB)"
    assert exit_evidence.full_disks(lines, ["/"], os.devnull) == expected
    assert exit_evidence.full_disks([text], ["/", str(tmp_path)], os.devnull) == expected
    assert exit_evidence.full_disks([text], ["/"], os.devnull) == ""
    assert exit_evidence.full_disks(lines[:1], [str(tmp_path)], os.devnull) == ""


def test_full_local_filesystem_is_found_in_mount_table(disks: Disks, tmp_path: Path) -> None:
    """The path is only in a variable. A remote file system isn't checked, since that
    could block.
    """
    table = tmp_path / "mounts"
    folders = [tmp_path / name for name in ("nfs", "ro", "data")]
    for folder in folders:
        folder.mkdir()
    table.write_text(
        f"server:/ {folders[0]} nfs rw 0 0\n/dev/a {folders[1]} squashfs ro 0 0\n"
        f"/dev/b {folders[2]} ext4 rw,noatime 0 0\n"
    )
    disks({str(folder): Disk(0) for folder in folders})
    expected = f"the file system of {folders[2]} is full (0 bytes free of 4 MiB)"
    assert exit_evidence.full_disks(TORCH, ["/"], str(table)) == expected


def test_filesystem_without_free_inodes_is_reported(disks: Disks, tmp_path: Path) -> None:
    disks({str(tmp_path): Disk(1 << 20, inodes=0)})
    expected = f"the file system of {tmp_path} has no inodes left (df -i)"
    assert exit_evidence.full_disks(TORCH, [str(tmp_path)], os.devnull) == expected


def test_file_size_limit_may_explain_a_failed_write(
    disks: Disks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.save does not give the reason. If the file system has room, it is a limit."""
    lines = [f'    torch.save(w, "{tmp_path}/step.pt")', TORCH[-1]]
    limit = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    disks({str(tmp_path): Disk(2 << 30)})
    expected = (
        "perhaps a file size limit (ulimit -f) or a quota: "
        f"the file system of {tmp_path} has 2 GiB free"
    )
    assert exit_evidence.file_size_limit(lines) == expected
    assert exit_evidence.file_size_limit(lines[:1]) == ""
    assert exit_evidence.file_size_limit(TORCH) == ""  # the path is unknown
    disks({str(tmp_path): Disk(1 << 20)})
    assert exit_evidence.file_size_limit(lines) == ""
    limit = 1 << 20
    expected = "perhaps the file reached its size limit (ulimit -f, 1 MiB)"
    assert exit_evidence.file_size_limit(TORCH) == expected


def test_read_only_filesystem_is_not_reported_as_full(disks: Disks, tmp_path: Path) -> None:
    disks({str(tmp_path): Disk(0, flags=os.ST_RDONLY)})
    assert exit_evidence.full_disks(TORCH, [str(tmp_path)], os.devnull) == ""


@pytest.mark.parametrize(
    ("disk", "expected"),
    [
        (
            Disk(4096),
            "the file system of {shm} is full (4 KiB free of 4 MiB) (enlarge it with --shm-size)",
        ),
        (
            Disk(4 << 20),
            "perhaps {shm}, which has only 4 MiB, was full (enlarge it with --shm-size), "
            "or a memory-mapped file was truncated",
        ),
        (Disk(8 << 30, size=8 << 30), "perhaps a memory-mapped file was truncated"),
    ],
    ids=["full", "small", "large"],
)
def test_bus_error_report_considers_size_of_shared_memory(
    disks: Disks, tmp_path: Path, disk: Disk, expected: str
) -> None:
    disks({str(tmp_path): disk})
    pod = Environment({"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert exit_evidence.bus_error(pod, str(tmp_path)) == expected.format(shm=tmp_path)


def test_full_shared_memory_is_reported_with_its_size(disks: Disks, tmp_path: Path) -> None:
    """The size is all there is to show, as the kernel has already freed the worker's
    files there.
    """
    disks({str(tmp_path): Disk(64 << 20, size=64 << 20)})
    pod, shm = Environment({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}), str(tmp_path)
    text = "RuntimeError: unable to allocate shared memory(shm): No space left on device (28)"
    expected = f"{shm} has 64 MiB (enlarge it with --shm-size)"
    assert exit_evidence.full_shared_memory([text], pod, shm) == expected
    assert not exit_evidence.full_shared_memory(["No space left on device"], pod, shm)


def test_hard_cpu_time_limit_is_suggested_as_cause_of_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"hard": resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda _: (5, limits["hard"]))
    assert not exit_evidence.hard_cpu_limit()
    limits["hard"] = 5
    assert exit_evidence.hard_cpu_limit() == (
        "perhaps it used up its CPU time limit (ulimit -t, 5 s) and was killed by the kernel"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            b"#!/no/such/py -u\n",
            "the interpreter on the first line of {}, /no/such/py, does not exist",
        ),
        (b"#! /no/such\n", "the interpreter on the first line of {}, /no/such, does not exist"),
        (b"#!/bin/sh\r\n", "the first line of {0} ends with a carriage return: dos2unix {0}"),
        (b"#!/bin/sh\n", ""),
        (b"#!\n", ""),
        (b"echo\n", ""),
        (b"\x7fELF\x02\x01", "{} needs a dynamic loader that is missing"),
    ],
)
def test_missing_script_interpreter_is_reported(tmp_path: Path, text: bytes, expected: str) -> None:
    program = tmp_path / "train"
    program.write_bytes(text)
    assert exit_evidence.missing_interpreter(str(program), HERE) == expected.format(program)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"echo\n", "{} needs a first line such as #!/bin/sh"),
        (b"\x7fELF\x02\x01", "{} was built for another type of processor"),
        (b"#!/bin/sh\n", ""),
    ],
)
def test_exec_format_error_is_explained(tmp_path: Path, text: bytes, expected: str) -> None:
    program = tmp_path / "train"
    program.write_bytes(text)
    assert exit_evidence.unknown_format(str(program), HERE) == expected.format(program)


@pytest.mark.parametrize(
    ("argv", "message", "expected"),
    [
        (
            "tools/train.py",
            "No module named 'lib'",
            "Python searches {}/tools, but lib is in {}; set PYTHONPATH={}, or use -m tools.train",
        ),
        (
            "to-ols/train.py",
            "No module named 'utils'",
            "Python searches {}/to-ols, but utils is in {}; set PYTHONPATH={}",
        ),
        (
            "pkg/tools/train.py",
            "No module named 'model'",
            "Python searches {}/pkg/tools, but model is in {}/pkg; set PYTHONPATH={}/pkg",
        ),
        (
            "pkg/train.py",
            "attempted relative import with no known parent package",
            "a script has no package; use -m pkg.train",
        ),
        ("train.py", "attempted relative import with no known parent package", ""),
        ("train.py", "No module named 'utils'", ""),
        ("tools/train.py", "No module named 'lib.data'", ""),
        ("tools/train.py", "No module named 'wandb'", ""),
        ("-m tools.train", "No module named 'lib'", ""),
        ("--no-python tools/train.py", "No module named 'lib'", ""),
    ],
)
def test_failed_import_of_own_code_names_directory_and_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: str, message: str, expected: str
) -> None:
    """A directory without source, such as that of wandb's runs, isn't the missing package."""
    monkeypatch.chdir(tmp_path)
    for name in ("lib/data.py", "utils.py", "pkg/model.py", "wandb/run-1/log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    report = ErrorReport(FailureKind.RAISED, "ImportError", message, "", "", ())
    command = command_of(argv.split())
    said = exit_evidence.unsearched_folder(report, command)
    assert said == expected.replace("{}", str(tmp_path))


def test_deleted_current_directory_does_not_break_explanation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    report = ErrorReport(FailureKind.RAISED, "", "No module named 'lib'", "", "", ())
    command = command_of(["/tools/train.py"])
    assert exit_evidence.unsearched_folder(report, command) == ""


def test_no_interpreter_is_reported_for_missing_program(tmp_path: Path) -> None:
    assert exit_evidence.missing_interpreter(str(tmp_path / "gone"), HERE) == ""
    assert exit_evidence.missing_interpreter("no-such-program", HERE) == ""


BROKEN = ErrorReport(FailureKind.RAISED, "BrokenPipeError", "", "", "", ())


@pytest.mark.parametrize(
    ("report", "exitcode", "is_closed", "is_told"),
    [
        (BROKEN, 1, True, True),
        (None, -signal.SIGPIPE, True, True),
        (None, 141, True, True),
        (BROKEN, 1, False, False),
        (BROKEN._replace(type="ValueError"), 1, True, False),
    ],
)
def test_broken_pipe_is_explained_if_console_is_closed(
    report: ErrorReport | None, exitcode: int, is_closed: bool, is_told: bool
) -> None:
    found = exit_evidence.closed_output(report, exitcode, is_closed=is_closed)
    assert bool(found) == is_told


LAUNCH = "relight launch passes --local-rank; use --use-env"
UNDERSCORE = "use --use-env, and add --local_rank '${local_rank}' after the script"
RUN = "read LOCAL_RANK, or add --local_rank '${local_rank}' after the script"
UNKNOWN = "t.py: error: unrecognized arguments: --local-rank=1"
REQUIRED = "t.py: error: the following arguments are required: --lr, --local_rank, --data"


@pytest.mark.parametrize(
    ("line", "words", "passed", "said"),
    [
        (UNKNOWN, "", True, LAUNCH),
        (f"t.py [-h] [--local_rank LOCAL_RANK]\n{UNKNOWN}", "", True, UNDERSCORE),
        ("Error: No such option: --local-rank", "", True, LAUNCH),
        (UNKNOWN, "--local-rank=1", False, ""),
        (REQUIRED, "", True, UNDERSCORE),
        (REQUIRED, "", False, RUN),
        ("OSError: [Errno 98] Address already in use", "--local_rank 0", False,
         "all 2 workers on this node were passed --local_rank 0"),
        ("OSError: [Errno 98] Address already in use", "", False, ""),
        ("ValueError: bad", "--local_rank 0", False, ""),
    ],
)  # fmt: skip
def test_wrong_use_of_local_rank_argument_is_explained(
    line: str, words: str, passed: bool, said: str
) -> None:
    command = command_of(["t.py", *words.split()])._replace(local_rank_argument=passed)
    assert exit_evidence.local_rank(["usage: t.py", *line.splitlines()], command, 2) == said
