"""Warm processes that outlive their job: their users, their isolation, and their end."""

import contextlib
import json
import os
import re
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import LIMIT_S, RELIGHT, clean_environment, long
from warm_torch import PATIENT

from relight.host import user_sockets
from relight.preload import file_tracer
from relight.warm import fork_compat
from warm.test_endings import MODULES as ENDING_MODULES
from warm.test_endings import SCRIPTS
from warm.test_observations import MODULES as SEEN_MODULES
from warm.test_observations import PROBE, compare

TOOK = "preload: using warm process"
INHERITING = """import ctypes, os, sys
if ctypes.CDLL(None).syscall({}) < 0:
    sys.exit("the system call failed")
os.execvp(sys.argv[1], sys.argv[1:])
"""
WAITS = """import json, os, time
print("waits", flush=True)
end = time.monotonic() + 180
while not os.path.exists(os.environ["GO"]) and time.monotonic() < end:
    time.sleep(0.02)
"""
Result = subprocess.CompletedProcess[str]


class Shell:
    """A user's shell, with its own directory for sockets.

    Args:
        folder: The working directory of all jobs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runtime = folder / "runtime"
        self.runtime.mkdir(mode=0o700)
        self.packages = folder / "lib" / "site-packages"
        self.packages.mkdir(parents=True)
        self.variables = {
            "XDG_RUNTIME_DIR": str(self.runtime),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "PYTHONPATH": str(self.packages),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }
        self.script = folder / "train.py"
        self.script.write_text("import json\nprint('trains')\n")

    def relight(
        self,
        *words: str | Path,
        under: tuple[str, ...] = (),
        by: tuple[str, ...] = RELIGHT,
        **variables: str,
    ) -> Result:
        """Run a relight command line to its end."""
        return subprocess.run(
            [*under, *by, *map(str, words)],
            cwd=self.folder,
            env=clean_environment(**{**self.variables, **variables}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def make(self, *flags: str, modules: str = "json", **variables: str) -> int:
        """Create a warm process for the script; return its pid."""
        flags = flags or (str(self.script),)
        made = self.relight("warm", "start", f"--preload={modules}", *flags, **variables)
        said = re.search(r"pid (\d+) keeps", made.stderr)
        assert made.returncode == 0 and said is not None, made.stderr
        return int(said[1])

    def job(self, *flags: str, modules: str = "json", **options: object) -> Result:
        """Run a job with the script. It may use a warm process."""
        result = self.relight(
            "run", f"--preload={modules}", "-v", *(flags or (str(self.script),)), **options
        )
        assert result.returncode == 0, result.stderr
        return result

    def takes(self, *flags: str, **options: object) -> bool:
        return TOOK in self.job(*flags, **options).stderr

    def takes_late(self) -> bool:
        """Return whether a job uses the warm process, however late that responds."""
        return TOOK in self.relight("run", "--preload=json", "-v", self.script, by=PATIENT).stderr

    def list(self) -> "list[dict[str, object]]":
        found: list[dict[str, object]] = json.loads(self.relight("warm", "--json").stdout)
        return found

    def pids(self) -> "list[int]":
        return [int(str(each["pid"])) for each in self.list()]

    def begin(self, *flags: str, **variables: str) -> "subprocess.Popen[str]":
        """Start a job."""
        return subprocess.Popen(
            [*RELIGHT, "run", "--preload=json", "-v", *flags],
            cwd=self.folder,
            env=clean_environment(**self.variables, **variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.runtime.chmod(0o700)
    with contextlib.suppress(OSError):
        (shell.runtime / "relight").chmod(0o700)
    if any(path.is_socket() for path in shell.runtime.glob("relight/*")):
        shell.relight("warm", "stop")


def wait(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "it does not become true"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """Return whether a process has ended, even if it has not been reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


# Which jobs use a warm process.


def test_next_job_uses_warm_process_whatever_its_arguments(shell: Shell) -> None:
    """Concurrent jobs can share one process; each worker has its own arguments."""
    shell.script.write_text("import json, sys, os\nprint(os.environ['RANK'], sys.argv[1:])\n")
    pid = shell.make()
    for number, arguments in enumerate((["a"], ["--b", ""], [])):
        result = shell.job("--nproc-per-node=2", str(shell.script), *arguments)
        assert f"{TOOK} {pid}: " in result.stderr, result.stderr
        assert f"{number} job" in result.stderr
        assert sorted(result.stdout.splitlines()) == [f"0 {arguments}", f"1 {arguments}"]
    command = [*RELIGHT, "run", "--preload=json", "-v", str(shell.script)]
    jobs = [
        subprocess.Popen(
            command, env=clean_environment(**shell.variables), cwd=shell.folder,
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        )
        for _ in range(3)
    ]  # fmt: skip
    assert all(TOOK in job.communicate(timeout=LIMIT_S)[1] for job in jobs)


@pytest.mark.parametrize("form", ["module", "directory", "archive"])
def test_modules_directories_and_archives_can_use_warm_process(shell: Shell, form: str) -> None:
    package = shell.folder / "package"
    package.mkdir()
    (package / "__main__.py").write_text("import sys\nprint('main', sys.argv[1:])\n")
    if form == "archive":
        shutil.make_archive("package", "zip", package)
        shutil.move("package.zip", shell.folder / "package.zip")
    flags = {"module": ["-m", "package"], "directory": ["package"], "archive": ["package.zip"]}
    shell.make(*flags[form])
    result = shell.job(*flags[form], "x")
    assert TOOK in result.stderr and result.stdout == "main ['x']\n"


def test_jobs_without_preload_flag_use_no_warm_process(shell: Shell) -> None:
    shell.make()
    for flags in ((), ("--preload=json", "--run-path"), ("--preload=json", "--numa-binding=node")):
        result = shell.relight("run", "-v", *flags, shell.script)
        assert result.stdout == "trains\n" and TOOK not in result.stderr, flags


def test_keep_warm_flag_leaves_warm_process_for_next_job(shell: Shell) -> None:
    """--keep-warm alone preloads the modules that the script imports, even after a short job."""
    shell.script.write_text("import decimal, json\nprint('trains')\n")
    first = shell.relight("run", "--keep-warm", "-v", shell.script)
    assert "without preloaded modules" in first.stderr
    wait(shell.list)
    (made,) = shell.list()
    assert made["preload"] == "auto"
    second = shell.relight("run", "-v", shell.script, RELIGHT_KEEP_WARM="on")
    assert TOOK in second.stderr and second.stdout == "trains\n"
    assert len(shell.list()) == 1
    third = shell.relight("run", "-v", "--preload=off", shell.script, RELIGHT_KEEP_WARM="on")
    assert "preload" not in third.stderr


def test_warm_process_preloads_all_modules_imported_by_worker(shell: Shell) -> None:
    (shell.packages / "one.py").write_text("")
    (shell.packages / "two.py").write_text("")
    shell.script.write_text("import one\n")
    shell.relight("run", "--keep-warm", shell.script)
    wait(shell.list)
    (first,) = shell.pids()
    shell.script.write_text("import one, two\n")
    assert TOOK in shell.relight("run", "--keep-warm", "-v", shell.script).stderr
    wait(lambda: shell.pids() and shell.pids() != [first])
    result = shell.relight("run", "--keep-warm", "-v", shell.script)
    assert TOOK in result.stderr
    assert shell.pids() == shell.pids() and first not in shell.pids()


def test_only_one_warm_process_is_created_at_a_time(shell: Shell) -> None:
    """A job that starts while the process is importing waits for it and uses it."""
    (shell.packages / "slow.py").write_text(
        "import os, time\nopen('began', 'w')\n"
        "while not os.path.exists('go'):\n    time.sleep(0.02)\n"
    )
    shell.script.write_text("print('trains')\n")
    first = shell.begin("--preload=slow", "--keep-warm", str(shell.script))
    wait((shell.folder / "began").exists)
    shown = shell.relight("warm")
    assert "importing modules" in shown.stderr
    assert "train.py" in shown.stderr
    others = [shell.begin("--preload=slow", "--keep-warm", str(shell.script)) for _ in range(2)]
    with pytest.raises(subprocess.TimeoutExpired):
        others[0].wait(0.5)
    (shell.folder / "go").touch()
    for job in (first, *others):
        assert job.communicate(timeout=LIMIT_S)[0] == "trains\n"
    (made,) = shell.list()
    assert made["uses"] == 3
    assert shell.takes(modules="slow")


def test_variable_set_by_library_is_detected_only_once(shell: Shell) -> None:
    """A library that isn't preloaded, because it reads RANK, sets a variable during its own import.
    The second job finds that out, and the process that it leaves behind has the value.
    """
    (shell.packages / "setter.py").write_text(
        "import os\nos.environ['RANK']\nos.environ['LIBRARY_MODE'] = 'new'\n"
    )
    (shell.packages / "library.py").write_text("import os\nv = os.environ.get('LIBRARY_MODE')\n")
    shell.script.write_text("import setter, library\nprint(library.v)\n")
    shell.relight("run", "--keep-warm", shell.script)
    wait(shell.list)
    first = shell.pids()
    second = shell.relight("run", "--keep-warm", "-v", shell.script)
    assert second.stdout == "new\n" and TOOK in second.stderr
    assert "setter sets LIBRARY_MODE before it imports library" in second.stderr
    assert "this worker restarts without preloaded modules" in second.stderr
    wait(lambda: shell.pids() and shell.pids() != first)
    third = shell.relight("run", "--keep-warm", "-v", shell.script)
    assert third.stdout == "new\n" and TOOK in third.stderr
    assert "restarts without" not in third.stderr


IMPATIENT = (
    sys.executable, "-c",
    "from relight.core.workers import import_ahead; import_ahead.UNKNOWN_S = 0.0\n"
    "from relight.cli.main import entry; entry()",
)  # fmt: skip
"""Relight that doesn't wait for imports if it does not know how long they take."""


def test_restart_uses_warm_process_that_was_not_ready_at_start(shell: Shell) -> None:
    """A job that starts cold during another job's imports uses them once they are done."""
    (shell.packages / "slow.py").write_text(
        "import os, time\nopen('began', 'w')\n"
        "while not os.path.exists('go'):\n    time.sleep(0.02)\n"
    )
    shell.script.write_text(
        "import os, sys, time\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    open('runs', 'w')\n"
        "    while not os.path.exists('fail'):\n        time.sleep(0.02)\n"
        "    sys.exit(1)\n"
    )
    making = subprocess.Popen(
        [*RELIGHT, "warm", "start", "--preload=slow", shell.script], cwd=shell.folder,
        env=clean_environment(**shell.variables), stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait((shell.folder / "began").exists)
    job = subprocess.Popen(
        [*IMPATIENT, "run", "--preload=slow", "--keep-warm", "-v", "--max-restarts=1",
         shell.script],
        cwd=shell.folder, env=clean_environment(**shell.variables), text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    wait((shell.folder / "runs").exists)
    (shell.folder / "go").touch()
    assert making.wait(LIMIT_S) == 0
    (shell.folder / "fail").touch()
    said = job.communicate(timeout=LIMIT_S)[1]
    assert "without preloaded modules" in said and TOOK in said, said
    assert "workers start with preloaded modules" in said
    assert len(shell.list()) == 1


@pytest.mark.parametrize("how", ["stop", "stop by pid", "while"])
def test_warm_process_stuck_in_import_can_be_ended(shell: Shell, how: str) -> None:
    """The process is ended by its user, or when the process that it must not outlive has ended. The
    job that started it is long over.
    """
    (shell.packages / "hangs.py").write_text(
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "open('pids', 'w').write(f'{os.getpid()} {os.getppid()} {child.pid}')\n"
        "time.sleep(1000)\n"
    )
    with subprocess.Popen(["sleep", "1000"]) as other:
        keep = f"--keep-warm=while:{other.pid}" if how == "while" else "--keep-warm"
        job = shell.begin("--preload=hangs", keep, str(shell.script))
        wait(lambda: len((shell.folder / "pids").read_text().split()) == 3
             if (shell.folder / "pids").exists() else False)  # fmt: skip
        pids = [int(word) for word in (shell.folder / "pids").read_text().split()]
        job.send_signal(signal.SIGINT)
        job.wait(LIMIT_S)
        assert job.stdout is not None
        job.stdout.close()
        assert not any(map(is_gone, pids))
        if how != "while":
            words = [str(pids[1])] if how == "stop by pid" else []
            stopped = shell.relight("warm", "stop", *words)
            assert f"{pids[1]} has ended" in stopped.stderr
        other.kill()
    wait(lambda: all(map(is_gone, pids)))
    assert not shell.list()


@pytest.mark.parametrize("kind", ["file", "module", "directory"])
def test_script_sees_same_process_state_cold_and_in_warm_process(shell: Shell, kind: str) -> None:
    """The process was created from another session, with different arguments, variables, and
    streams, and the script has been edited since.
    """
    package = shell.folder / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    program = package / ("__main__.py" if kind == "directory" else "probe.py")
    program.write_text("print('another text')\n")
    words = {"file": ["package/probe.py"], "module": ["-m", "package.probe"]}
    target = words.get(kind, ["package"])
    shell.make(*target, "other", "arguments", modules=SEEN_MODULES, UNRELATED="x" * 5000)
    shutil.copy(PROBE, program)
    seen = []
    for preload in ("off", SEEN_MODULES):
        result = shell.job(
            "--nproc-per-node=2", *target, "a", "", "é", modules=preload,
            RESULT=str(shell.folder / "result"), RANK="7", UNRELATED="y",
        )  # fmt: skip
        assert (TOOK in result.stderr) == (preload != "off"), result.stderr
        paths = [shell.folder / f"result{rank}" for rank in (0, 1)]
        seen.append([json.loads(path.read_text()) for path in paths])
    compare(*seen)


@pytest.mark.slow
@pytest.mark.long
def test_script_ends_identically_cold_and_in_warm_process(shell: Shell) -> None:
    """The script ends in all 71 ways; it is edited between the jobs that use one process."""
    pid = shell.make(modules=ENDING_MODULES)
    (shell.folder / "neighbour.py").write_text("x = 3\n")
    different = []
    for number, (name, text) in enumerate(SCRIPTS.items()):
        shell.script.write_text(text)
        ends = []
        for preload in ("off", ENDING_MODULES):
            logs = shell.folder / f"logs{number}{preload[:3]}"
            result = shell.relight(
                "run", f"--preload={preload}", "--redirects=3", f"--log-dir={logs}", "-v",
                shell.script,
            )  # fmt: skip
            assert (TOOK in result.stderr) == (preload != "off"), result.stderr
            texts = [
                re.sub(r"0x[0-9a-f]{6,}|\d{5,}", "N", file.read_text())
                for file in sorted(logs.glob("*/attempt_0/*/std*.log"))
            ]
            ends.append((result.returncode, texts))
        if ends[0] != ends[1]:
            different.append((name, *ends))
    assert not different
    assert shell.pids() == [pid]


# Used only if it fits.


@pytest.fixture(scope="module")
def made_shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell with a warm process that doesn't fit some jobs, but fits all others."""
    shell = Shell(tmp_path_factory.mktemp("made"))
    (shell.packages / "reader.py").write_text(
        "import os\n"
        "known = os.environ.get('READ_WITH_DEFAULT', ''), 'ASKED_FOR' in os.environ\n"
        "prefixed = [x for x in os.environ if x.startswith('READER_OF_')]\n"
        "try:\n    os.environ['READ_BY_NAME']\nexcept KeyError:\n    pass\n"
    )
    pid = shell.make(modules="json,reader")
    assert shell.takes(modules="json,reader", OTHER="1")
    yield shell
    assert shell.takes(modules="json,reader", OTHER="1")
    assert shell.pids() == [pid]
    shell.relight("warm", "stop")


@pytest.mark.parametrize(
    ("fact", "under", "variables"),
    [
        ("Umask:", ("sh", "-c", 'umask 027; exec "$@"', "-"), {}),
        ("limit NOFILE:", ("prlimit", "--nofile=500:"), {}),
        ("limit NOFILE:", ("prlimit", "--nofile=900:9000"), {}),
        ("limit STACK:", ("prlimit", "--stack=4000000:"), {}),
        ("nice value:", ("nice", "-n", "3"), {}),
        ("I/O priority:", ("ionice", "-c3"), {}),
        ("memory policy:", ("INHERITING", "238, 2, ctypes.byref(ctypes.c_ulong(1)), 64"), {}),
        ("session keyring:", ("INHERITING", "250, 1, None"), {}),
        (
            "coredump_filter:",
            ("sh", "-c", 'echo 0x7f > /proc/self/coredump_filter; exec "$@"', "-"),
            {},
        ),
        ("processors:", ("taskset", "-c", "0"), {}),
        ("ignored signals: SIGHUP SIG", ("nohup",), {}),
        ("NoNewPrivs:", ("setpriv", "--no-new-privs"), {}),
        ("PYTHONPATH", (), {"PYTHONPATH": "/nowhere"}),
        ("PYTHONHASHSEED", (), {"PYTHONHASHSEED": "1"}),
        ("LD_LIBRARY_PATH", (), {"LD_LIBRARY_PATH": "/nowhere"}),
        ("LC_ALL", (), {"LC_ALL": "C"}),
        ("OMP_NUM_THREADS", (), {"OMP_NUM_THREADS": "2"}),
        ("READ_BY_NAME", (), {"READ_BY_NAME": "secret"}),
        ("READ_WITH_DEFAULT", (), {"READ_WITH_DEFAULT": "secret"}),
        ("ASKED_FOR", (), {"ASKED_FOR": ""}),
        ("READER_OF_PREFIX", (), {"READER_OF_PREFIX": "secret"}),
    ],
)
def test_job_that_does_not_match_warm_process_starts_cold(
    made_shell: Shell, fact: str, under: tuple[str, ...], variables: dict[str, str]
) -> None:
    if under[:1] == ("INHERITING",):
        if os.uname().machine != "x86_64":
            pytest.skip("the number of the system call is that of x86-64")
        under = (sys.executable, "-c", INHERITING.format(under[1]))
    if under[:1] == ("taskset",) and os.cpu_count() == 1:
        under = ("prlimit", "--nofile=400:")
        fact = "limit NOFILE:"
    modules = "json" if fact == "PYTHONPATH" else "json,reader"
    result = made_shell.job(modules=modules, under=under, **variables)
    assert result.stdout == "trains\n"
    assert TOOK not in result.stderr
    (line,) = (line for line in result.stderr.splitlines() if "can't use warm process" in line)
    assert f": {fact.replace(':', ' is', 1)}" in line
    assert "secret" not in line


def test_warm_process_match_ignores_signals_reserved_by_libc(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until the process has a thread, they may or may not be ignored, depending on how a shell or
    make started it (nptl(7)).
    """
    facts = []
    for mask in ("0000000181001000", "0000000001001000"):
        monkeypatch.setattr(
            fork_compat,
            "content",
            lambda path, mask=mask: f"SigIgn:\t{mask}\n" * path.endswith("status"),
        )
        facts.append(fork_compat.collect())
    assert facts[0] == facts[1] and facts[0]["ignored signals"] == "SIGPIPE SIGXFSZ"


@pytest.mark.needs_root
@pytest.mark.parametrize("kind", ["net", "uts", "ipc", "mount"])
def test_warm_process_is_not_used_from_another_namespace(made_shell: Shell, kind: str) -> None:
    result = made_shell.job(modules="json,reader", under=("unshare", f"--{kind}"))
    assert ": namespace " in result.stderr and TOOK not in result.stderr


def test_warm_process_requires_same_interpreter_directory_and_modules(
    shell: Shell, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shell.make()
    assert not shell.takes(PYTHON_EXEC=os.path.realpath(sys.executable))
    result = shell.job(modules="json,decimal")
    assert ": it was not told to import decimal" in result.stderr
    shell.folder = tmp_path_factory.mktemp("elsewhere")
    assert not shell.takes()


@pytest.mark.parametrize(
    "change",
    [
        "content",
        "content, with the old times",
        "data file",
        long("listed file"),
        "new package",
        long("new pth file"),
        long("removed"),
        "shadow",
        long("sitecustomize"),
    ],
)
def test_change_in_preloaded_package_is_detected_immediately(shell: Shell, change: str) -> None:
    """Even changes within the same second that keep the size are detected; the process ends."""
    module = shell.packages / "package.py"
    data = shell.folder / "data.txt"
    data.write_text("1")
    (shell.folder / "plugins").mkdir()
    module.write_text(
        f"import os\nvalue = open({str(data)!r}).read() + '1'\n"
        f"plugins = os.listdir({str(shell.folder / 'plugins')!r})\n"
    )
    shell.script.write_text("import package\nprint(package.value)\n")
    pid = shell.make(modules="package")
    result = shell.job(modules="package")
    assert TOOK in result.stderr and result.stdout == "11\n"
    expected = "11"
    if change == "content":
        module.write_text(module.read_text().replace("'1'", "'2'"))
        expected = "12"
    elif change == "data file":
        data.write_text("2")
        expected = "21"
    elif change == "content, with the old times":
        before = module.stat()
        module.write_text(module.read_text().replace("'1'", "'2'"))
        os.utime(module, ns=(before.st_atime_ns, before.st_mtime_ns))
        expected = "12"
    elif change == "listed file":
        (shell.folder / "plugins" / "two.json").touch()
        expected = "11"
    elif change == "new package":
        (shell.packages / "another.py").touch()
    elif change == "new pth file":
        (shell.packages / "another.pth").touch()
    elif change == "removed":
        shutil.copy(module, shell.folder / "package.py")
        module.unlink()
    elif change == "shadow":
        (shell.folder / "package.py").write_text("value = 'mine'\n")
        expected = "mine"
    else:
        (shell.packages / "sitecustomize.py").touch()
    modules = "json" if change in ("removed", "shadow") else "package"
    result = shell.job(modules=modules)
    assert TOOK not in result.stderr and result.stdout == f"{expected}\n", result.stderr
    assert "can't use warm process" in result.stderr
    if modules == "package":
        wait(lambda: is_gone(pid))


def test_variables_named_in_pth_modules_count_as_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules in .pth files run before anything can be traced, so every name in them counts."""
    path = tmp_path / "site-packages" / "early.py"
    path.parent.mkdir()
    path.write_text("import os\nMODE = os.environ.get('MYMODE', \"none\")\n")
    early = types.ModuleType("early")
    early.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "early", early)
    assert file_tracer._module_words() >= {"MYMODE"}


def test_warm_process_is_used_despite_irrelevant_changes(shell: Shell) -> None:
    """The script, its neighbours, compiled files, and other variables may change."""
    shell.make()
    shell.script.write_text("import json, neighbour\nprint('edited', neighbour.x)\n")
    (shell.folder / "neighbour.py").write_text("x = 1\n")
    (shell.packages / "__pycache__").mkdir()
    (shell.packages / "README.txt").touch()
    result = shell.job(NEW="1")
    assert TOOK in result.stderr and result.stdout == "edited 1\n"


def test_file_changed_during_import_invalidates_warm_process(shell: Shell) -> None:
    (shell.packages / "self_writing.py").write_text(
        "import time\ntime.sleep(0.1)\nopen(__file__, 'a').write('# more\\n')\n"
    )
    made = shell.relight("warm", "start", "--preload=self_writing", shell.script)
    assert made.returncode == 4
    assert "self_writing.py changed while it was being imported" in made.stderr
    assert not shell.list()


def test_module_that_reads_a_changing_file_is_not_preloaded(shell: Shell) -> None:
    """Only that module is left out: the process keeps the others."""
    (shell.packages / "busy.py").write_text(
        "open('status', 'w').write('new')\nopen('status').read()\n"
    )
    made = shell.relight("warm", "start", "--preload=busy,json", shell.script)
    assert made.returncode == 0, made.stderr
    assert "busy is not preloaded: busy reads " in made.stderr
    assert "status, which has changed in the meantime" in made.stderr
    assert shell.pids()


def test_data_file_rewritten_with_same_content_keeps_warm_process_valid(shell: Shell) -> None:
    """A file rewritten with the same content, as by a package manager, doesn't matter."""
    data = shell.packages / "settings.json"
    data.write_text("1")
    (shell.packages / "reader.py").write_text(
        f"with open({str(data)!r}) as file:\n    value = file.read()\n"
    )
    shell.make(modules="reader")
    data.unlink()
    data.write_text("1")
    assert shell.takes(modules="reader")
    data.write_text("2")
    assert "settings.json has changed" in shell.job(modules="reader").stderr


def test_linker_cache_changes_matter_only_for_libraries_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, libc = tmp_path / "ld.so.cache", next(file_tracer._mapped())
    monkeypatch.setattr(file_tracer, "_CACHE", str(cache))
    cache.write_bytes(f"\0x\0{libc}\0".encode())
    inputs = file_tracer.Inputs(time.time_ns())
    assert not inputs.end()
    cache.write_bytes(f"\0libother.so\0/usr/lib/libother.so\0{libc}\0".encode())
    assert not inputs.changed()
    cache.write_bytes(f"\0x\0/opt/{os.path.basename(libc)}\0{libc}\0".encode())
    assert inputs.changed() == f"{cache} refers to different files for libraries in use"


def test_module_that_reads_arguments_is_imported_by_each_worker(shell: Shell) -> None:
    (shell.packages / "reads.py").write_text("import sys\nwords = sys.argv[1:]\n")
    shell.script.write_text("import json, reads\nprint(reads.words)\n")
    made = shell.relight("warm", "start", "--preload=json,reads", shell.script)
    assert "reads reads the script's arguments" in made.stderr
    result = shell.job("train.py", "a", modules="json")
    assert result.stdout == "['a']\n"


# Nothing leaks.


def test_variables_and_arguments_do_not_leak_between_jobs(shell: Shell) -> None:
    """Nothing leaks through the environment or proc(5), in any existing or future process."""
    shell.script.write_text(
        "import os, pathlib\n"
        "environ = pathlib.Path('/proc/self/environ').read_bytes()\n"
        "assert environ.endswith(b'\\0') and b'\\0\\0' not in environ\n"
        "pairs = dict(x.split(b'=', 1) for x in environ[:-1].split(b'\\0'))\n"
        "assert pairs == dict(os.environb), set(pairs) ^ set(os.environb)\n"
        "words = pathlib.Path('/proc/self/cmdline').read_bytes().split(b'\\0')\n"
        "assert words[3:] == [b'second', b''], words\n"
        "text = ''\n"
        "for path in pathlib.Path('/proc').glob('[0-9]*'):\n"
        "    try:\n"
        "        if 'warm' in (path / 'comm').read_text():\n"
        "            text += (path / 'environ').read_text() + (path / 'cmdline').read_text()\n"
        "    except OSError:\n"
        "        pass\n"
        "assert 'warm process' in text and 'MARKER' not in text\n"
        "assert 'MARKER' not in str(os.environ)\n"
        "print('ok')\n"
    )
    shell.make(str(shell.script), "MARKER-argument", SECRET="MARKER-value")
    result = shell.job(str(shell.script), "second", OWN="x" * 300)
    assert TOOK in result.stderr and result.stdout == "ok\n"


def test_warm_directory_must_be_private(shell: Shell) -> None:
    """A directory that others can access is not used, and the job runs cold."""
    shell.make()
    folder = shell.runtime / "relight"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o755)
    result = shell.relight("run", "--preload=json", "--keep-warm", "-v", shell.script)
    assert result.stdout == "trains\n" and TOOK not in result.stderr
    assert "--keep-warm has no effect: " in result.stderr
    assert "workers start with preloaded modules" in result.stderr
    listed = shell.relight("warm")
    assert listed.returncode == 4 and "other users can enter it" in listed.stderr
    folder.chmod(0o700)
    assert shell.takes()


@pytest.mark.needs_root
def test_warm_process_does_not_respond_to_other_users(shell: Shell) -> None:
    """The permissions of the directory and the socket have been opened up."""
    shell.make()
    folder = shell.runtime / "relight"
    (path,) = (x for x in folder.iterdir() if stat.S_ISSOCK(x.stat().st_mode))
    program = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_UNIX)\ns.settimeout(5)\ns.connect(sys.argv[1])\n"
        "s.sendall(b'take\\n')\nprint(s.recv(100))\n"
    )
    short = Path("/tmp") / f"relight-test-{os.getpid()}"  # other users can access it
    other = ["setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/env", "python3"]
    os.link(path, short)
    try:
        short.chmod(0o666)
        result = subprocess.run(
            [*other, "-c", program, short], capture_output=True, text=True, check=False
        )
    finally:
        short.unlink()
    if "Permission denied" in result.stderr and "connect" not in result.stderr:
        pytest.skip("no Python that another user can run")
    assert result.stdout.strip() in ("b''", "") and "pid" not in result.stdout
    assert shell.takes()


def test_warm_process_ignores_garbage_on_its_socket(shell: Shell) -> None:
    pid = shell.make()
    (path,) = (x for x in (shell.runtime / "relight").iterdir() if stat.S_ISSOCK(x.stat().st_mode))
    folder = os.open(path.parent, os.O_PATH)
    address = f"/proc/self/fd/{folder}/{path.name}"
    with contextlib.ExitStack() as kept:
        for text in (b"", b"tak", b"nonsense\n", b"x" * 100_000, b"take", b"\0" * 20, b"stop"):
            connection = kept.enter_context(socket.socket(socket.AF_UNIX))
            connection.settimeout(5)
            connection.connect(address)
            with contextlib.suppress(OSError):
                connection.sendall(text)
        for _ in range(100):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(address)
        os.close(folder)
        assert shell.takes_late()
    assert shell.pids() == [pid]
    assert shell.takes_late()


# No orphans.

FAMILY = """
import json, os, subprocess, sys, time
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("pids", os.getpid(), child.pid, flush=True)
time.sleep(1000)
"""


def pids_of(process: "subprocess.Popen[str]", workers: int) -> list[int]:
    assert process.stdout is not None
    pids = []
    for _ in range(workers):
        _, *words = process.stdout.readline().split()
        pids += [int(word) for word in words]
    return pids


@pytest.mark.parametrize(
    ("victims", "stopped"),
    [
        ("agent", ""),
        ("warm process", ""),
        ("guard", ""),
        ("spawner", ""),
        long("agent, warm process", ""),
        long("agent, guard", ""),
        long("agent, spawner", ""),
        long("guard, spawner", ""),
        ("agent", "warm process"),
        long("agent", "guard"),
        long("agent", "spawner"),
        ("agent", "guard, spawner"),
        long("warm process", "guard"),
    ],
)
def test_no_worker_survives_if_any_process_of_job_is_killed(
    shell: Shell, victims: str, stopped: str
) -> None:
    """Even processes started in another session end; the warm process serves the next job."""
    pid = shell.make()
    text = shell.script.read_text()
    shell.script.write_text(FAMILY)
    process = shell.begin("--nproc-per-node=2", str(shell.script))
    family = pids_of(process, 2)
    spawner = parent(family[0])
    known = {
        "agent": process.pid, "warm process": pid, "spawner": spawner, "guard": parent(spawner),
    }  # fmt: skip
    assert parent(known["guard"]) == pid
    for name in filter(None, stopped.split(", ")):
        os.kill(known[name], signal.SIGSTOP)
    for name in victims.split(", "):
        with contextlib.suppress(ProcessLookupError):  # a spawner ends with its guard
            os.kill(known[name], signal.SIGKILL)
    try:
        if "warm process" not in stopped:
            wait(lambda: all(map(is_gone, family)))
    finally:
        if "warm process" in stopped:
            os.kill(pid, signal.SIGCONT)
    wait(lambda: all(map(is_gone, family)))
    if "agent" not in victims:
        assert process.wait(LIMIT_S) != 0
    process.wait(LIMIT_S)
    assert process.stdout is not None
    process.stdout.close()
    shell.script.write_text(text)
    if "warm process" not in victims:
        assert shell.takes()
    else:
        assert not shell.takes()


def test_job_can_restart_workers_from_warm_process(shell: Shell) -> None:
    """The warm process forks the new workers; if it is killed, the job continues without it."""
    pid = shell.make()
    shell.script.write_text(
        "import os, signal, time\n"
        "restart = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "print('pids', os.getpid(), flush=True)\n"
        "if restart == '0': os.kill(os.getpid(), signal.SIGKILL)\n"
        "if restart == '1': time.sleep(1000)\n"
    )
    process = shell.begin("--max-restarts=2", str(shell.script))
    pids_of(process, 1)
    (second,) = pids_of(process, 1)
    assert parent(parent(parent(second))) == pid
    os.kill(pid, signal.SIGKILL)
    (third,) = pids_of(process, 1)
    assert third != second
    assert process.wait(LIMIT_S) == 0
    assert process.stdout is not None
    process.stdout.close()


# How it ends.


def test_idle_warm_process_ends_after_its_timeout(shell: Shell) -> None:
    """The process does not end while a job is using it."""
    pid = shell.make("--keep-warm=0.1", str(shell.script))  # 6 s
    shell.script.write_text("import time\ntime.sleep(7)\n")
    assert shell.takes()
    assert not is_gone(pid)
    wait(lambda: is_gone(pid))
    assert not list((shell.runtime / "relight").glob("[!lj]*"))


def test_warm_process_ends_with_the_process_it_is_tied_to(shell: Shell) -> None:
    other = subprocess.Popen(["sleep", "1000"])
    pid = shell.make(f"--keep-warm=while:{other.pid}", str(shell.script))
    assert shell.takes()
    other.kill()
    other.wait()
    wait(lambda: is_gone(pid))


@pytest.mark.parametrize("what", ["socket", "directory"])
def test_warm_process_ends_when_its_socket_is_removed(shell: Shell, what: str) -> None:
    """At logout, for example, the user's directory is removed."""
    pid = shell.make()
    folder = shell.runtime / "relight"
    if what == "socket":
        for path in folder.glob("[!lj]*"):
            path.unlink()
    else:
        shutil.rmtree(folder)
    wait(lambda: is_gone(pid))


def test_warm_stop_command_ends_warm_process_after_current_job(shell: Shell) -> None:
    """The process finishes the current job and accepts no other."""
    pid = shell.make()
    shell.script.write_text("import time\nprint('pids', flush=True)\ntime.sleep(1000)\n")
    process = shell.begin(str(shell.script))
    pids_of(process, 1)
    assert "will exit after the job" in shell.relight("warm", "stop", str(pid)).stderr
    shell.script.write_text("print('trains')\n")
    assert not shell.takes()
    assert not is_gone(pid)
    process.terminate()
    process.wait(LIMIT_S)
    assert process.stdout is not None
    process.stdout.close()
    wait(lambda: is_gone(pid))


def test_user_has_at_most_three_warm_processes(shell: Shell) -> None:
    """The process that has been idle for longest ends."""
    scripts = [shell.folder / f"{name}.py" for name in "abcd"]
    pids = []
    for path in scripts:
        path.write_text("")
        before = set(shell.pids())
        shell.relight("warm", "start", "--preload=json", path)
        pids += set(shell.pids()) - before
        if path.name == "c.py":
            assert shell.takes(str(scripts[0]))
    assert set(shell.pids()) == {pids[0], pids[2], pids[3]}


def test_idle_warm_process_never_wakes_up(shell: Shell) -> None:
    pid = shell.make()
    shell.list()

    def switches() -> int:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)

    time.sleep(0.5)  # from the connection that queried it
    before = switches()
    time.sleep(2)
    assert switches() == before


def test_warm_process_is_not_used_from_another_login_session(shell: Shell) -> None:
    """A session started by pam_loginuid(8) ends with its first process."""
    login = 'echo 0 > /proc/self/loginuid && "$@" && echo made && read word'
    command = [*RELIGHT, "warm", "start", "--preload=json", str(shell.script)]
    session = subprocess.Popen(
        ["sh", "-c", login, "-", *command], cwd=shell.folder, stdin=subprocess.PIPE,
        env=clean_environment(**shell.variables), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert session.stdout is not None
    assert session.stdin is not None
    made = session.stdout.readline()
    if not made:
        pytest.skip("this system lets nobody begin a login session (/proc/self/loginuid)")
    (pid,) = shell.pids()
    result = shell.job()
    assert re.search(r"can't use warm process \d+: (sessionid|loginuid) is ", result.stderr)
    assert TOOK not in result.stderr and not is_gone(pid)
    session.communicate("\n")
    wait(lambda: is_gone(pid))


def test_warm_process_ends_when_memory_is_low(tmp_path: Path) -> None:
    """Memory pressure affects the whole machine, so another container may cause it. Real pressure
    would harm other tests, so a socket with urgent data replaces the kernel's file; poll(2) reports
    both in the same way.
    """
    program = """
import os, socket, sys
from relight.preload import warm_process
server = socket.create_server(("127.0.0.1", 0))
kernel = socket.create_connection(server.getsockname())
file, _ = server.accept()
warm_process._pressure = file.fileno
warm_process.free_memory.why_scarce = lambda: "1 MiB" if sys.argv[2] == "scarce" else ""
process = warm_process.WarmProcess(sys.argv[1], 1800.0, [], lambda: None, is_ahead=True)
ours, theirs = socket.socketpair()
theirs.close()  # the agent is gone
if sys.argv[2] != "calm":
    kernel.send(b"!", socket.MSG_OOB)
print("serves", flush=True)
process.run(ours, os.getppid())
"""
    for state in ("calm", "pressure of others", "scarce"):
        path = tmp_path / state
        process = subprocess.Popen(
            [sys.executable, "-c", program, path, state], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "serves\n"
        if state == "scarce":
            assert process.wait(LIMIT_S) == 0 and not path.exists()
        else:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            assert path.exists()
            process.kill()
            process.wait()
        process.stdout.close()


def test_memory_pressure_is_monitored_through_the_kernel() -> None:
    """The test needs a writable /proc/pressure. Real pressure would harm other tests."""
    from relight.preload import warm_process

    fd = warm_process._pressure()
    if fd < 0:
        assert not os.access("/proc/pressure/memory", os.W_OK) or os.geteuid() != 0
        pytest.skip("this system does not tell about memory pressure")
    poll = select.poll()
    poll.register(fd, select.POLLPRI)
    assert not any(event & select.POLLERR for _, event in poll.poll(0))
    os.close(fd)


# relight warm.


def test_warm_command_lists_warm_processes(shell: Shell) -> None:
    assert "you have no warm processes" in shell.relight("warm").stderr
    pid = shell.make()
    assert shell.takes()
    lines = shell.relight("warm", "list").stdout.splitlines()
    heads = ["PID", "SCRIPT", "DIRECTORY", "PRELOAD", "MODULES", "MEMORY", "AGE", "USES", "ENDS"]
    assert lines[0].split() == heads
    assert lines[1].split()[:4] == [str(pid), str(shell.script), str(shell.folder), "json"]
    (only,) = shell.list()
    assert only["pid"] == pid and only["jobs"] == 0 and int(str(only["memory"])) > 1_000_000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("warm", "sotp"), "did you mean stop?"),
        (("warm", "stop", "x"), "takes pids, not x"),
        (("warm", "stop", "1"), "1 is not one of your warm processes"),
        (("warm", "stop", "--json"), "does not support --json"),
        (("warm", "list", "x"), "takes flags only"),
        (("warm", "start", "nothing.py"), "nothing.py"),
        (("warm", "start", "train.py"), "the imports of train.py are unknown"),
        (("warm", "start", "--preload=nix_da", "train.py"), "no such module: nix_da"),
        (("warm", "start", "--no-python", "--preload=json", "true"), "don't support --no-python"),
        (("run", "--keep-warm=abc", "train.py"), "expected minutes, on, off, or while:PID"),
        (("run", "--keep-warm=-1", "train.py"), "expected minutes, above 0"),
        (("run", "--keep-warm=nan", "train.py"), "expected minutes, above 0"),
        (("run", "--keep-warm=1e99", "train.py"), "expected minutes, above 0"),
        (("run", "--keep-warm=while:x", "train.py"), "while:PID with the pid"),
        (("run", "--keep-warm=until:3", "train.py"), "while:PID with the pid"),
    ],
)
def test_error_names_invalid_argument(shell: Shell, words: tuple[str, ...], said: str) -> None:
    result = shell.relight(*words)
    assert result.returncode == 2, result.stderr
    assert said in result.stderr and "Traceback" not in result.stderr
    assert not any(path.is_socket() for path in shell.runtime.glob("relight/*"))


def test_second_warm_start_command_reuses_existing_process(shell: Shell) -> None:
    pid = shell.make()
    again = shell.relight("warm", "start", "--preload=json", shell.script)
    assert again.returncode == 0 and f"already running: pid {pid}" in again.stderr
    assert "has ended" in shell.relight("warm", "stop").stderr
    assert is_gone(pid)


ENDLESS = "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(1000)\n"
BUSY = """
import os, sys, time
from relight.warm.warm_processes import WarmProcesses
start = WarmProcesses.start
def start_and_be_late(*arguments, **named):
    origin = start(*arguments, **named)
    while not os.path.exists("go"):
        time.sleep(0.01)
    return origin
WarmProcesses.start = start_and_be_late
from relight.cli.main import entry
entry()
"""
"""Relight on a machine so busy that the process imports before its starter waits for it."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("by", [RELIGHT, (sys.executable, "-c", BUSY)], ids=["idle", "busy"])
def test_interrupted_warm_start_command_leaves_nothing_behind(
    shell: Shell, by: tuple[str, ...], number: signal.Signals
) -> None:
    (shell.packages / "endless.py").write_text(ENDLESS)
    process = subprocess.Popen(
        [*by, "warm", "start", "--preload=endless", shell.script], cwd=shell.folder,
        env=clean_environment(**shell.variables),
    )  # fmt: skip
    wait(lambda: (shell.folder / "pid").exists() and (shell.folder / "pid").read_text())
    process.send_signal(number)
    (shell.folder / "go").touch()
    assert process.wait(LIMIT_S) == 128 + number
    wait(lambda: is_gone(int((shell.folder / "pid").read_text())))


def test_launched_functions_use_warm_process(shell: Shell) -> None:
    """The first call leaves the process behind, and it stays as long as the caller runs."""
    (shell.packages / "package.py").write_text("value = 1\n")
    shell.script.write_text("""
import os, relight, threading, time, atexit

def work(x):
    import package
    atexit.register(print, "at exit")
    threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
    return x + package.value

if __name__ == "__main__":
    from relight.warm import warm_processes
    for number in range(40):
        assert relight.launch(work, number, nproc_per_node=2, flags=["-v"]) == [number + 1] * 2
        time.sleep(0.05)
        if number > 3 and os.path.exists("enough"):
            break
    try:
        relight.launch(exec, "raise KeyError('mine')", nproc_per_node=2)
    except KeyError as error:
        print("raised", error)
""")
    process = subprocess.Popen(
        [sys.executable, shell.script], cwd=shell.folder, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=clean_environment(**shell.variables),
    )  # fmt: skip
    wait(shell.list)
    wait(lambda: any(int(str(each["uses"])) > 1 for each in shell.list()))
    (shell.folder / "enough").touch()
    pids = shell.pids()
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    assert TOOK in err and "raised 'mine'" in out
    assert out.count("thread") == out.count("at exit") > 4
    wait(lambda: all(map(is_gone, pids)))


@pytest.mark.parametrize("kind", ["silent", "slow"])
def test_unresponsive_warm_process_does_not_block_use_of_another(shell: Shell, kind: str) -> None:
    """A process hangs, or sends its response byte by byte, on a socket that looks newer."""
    shell.make()
    (path,) = (path for path in (shell.runtime / "relight").iterdir() if path.is_socket())
    other = path.with_name(path.name.partition(".")[0] + ".hangs")
    sends = "c.sendall(b'{')" if kind == "slow" else "pass"
    code = (
        "import os, socket, sys, time\n"
        "os.chdir(os.path.dirname(sys.argv[1]))\n"
        "s = socket.socket(socket.AF_UNIX)\ns.bind(os.path.basename(sys.argv[1]))\n"
        "s.listen()\nprint('listens', flush=True)\n"
        f"while True:\n    c, _ = s.accept()\n    for _ in range(60):\n"
        f"        try:\n            {sends}\n        except OSError:\n            break\n"
        "        time.sleep(0.1)\n"
    )
    command = [sys.executable, "-c", code, str(other)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as hanging:
        assert hanging.stdout is not None
        assert hanging.stdout.readline() == "listens\n"
        assert shell.takes()
        hanging.kill()


def test_warm_process_with_endless_import_is_ended() -> None:
    code = (
        "import os, time\nfrom relight.preload import guard\n"
        "guard.IMPORT_LIMIT_S = 0.5\n"
        "guard.stand_guard(None)\nprint(os.getpid(), flush=True)\ntime.sleep(1000)\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as guard:
        assert guard.stdout is not None
        pid = int(guard.stdout.readline())
        guard.wait(LIMIT_S)
        assert is_gone(pid)


@pytest.mark.parametrize("what", ["directory", "descriptors"])
def test_querying_warm_process_does_not_disturb_job(shell: Shell, what: str) -> None:
    """The process may be unable to check its files, because the job's directory was removed or all
    descriptors are in use.
    """
    work = shell.folder / "work"
    work.mkdir()
    shell.script.write_text(WAITS)
    limit = "ulimit -n 24; " if what == "descriptors" else ""
    under = ("bash", "-c", f'{limit}cd {work} && exec "$@"', "bash")
    words = ("run", "--preload=json", "--keep-warm", str(shell.script))
    assert shell.relight(*words, under=under, GO=str(shell.script)).returncode == 0
    wait(shell.pids)
    (path,) = (path for path in (shell.runtime / "relight").iterdir() if path.is_socket())
    with contextlib.ExitStack() as stack:
        job = stack.enter_context(
            subprocess.Popen(
                [*under, *RELIGHT, "run", "--preload=json", str(shell.script)],
                env=clean_environment(**shell.variables, GO=str(shell.folder / "go")),
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback((shell.folder / "go").touch)
        assert job.stdout is not None
        assert job.stdout.readline() == "waits\n"
        work.rmdir()
        connections = [user_sockets.connect(str(path), 0.5) for _ in range(40)]
        silent = [stack.enter_context(each) for each in connections if each is not None]
        for connection in silent:
            with contextlib.suppress(OSError):
                connection.recv(1 << 16)
        assert silent
        assert job.poll() is None
        (shell.folder / "go").touch()
        assert job.wait(LIMIT_S) == 0


def test_long_list_of_modules_is_shortened(shell: Shell) -> None:
    names = "json,csv,decimal,fractions,statistics,colorsys,tomllib,wave"
    shell.make(modules=names)
    line = shell.relight("warm").stdout.splitlines()[1]
    assert "json,csv,decimal,fractions,statistics and 3 more" in line


def test_keep_warm_flag_without_effect_is_rejected_or_reported(shell: Shell) -> None:
    result = shell.relight("run", "--keep-warm=while:4194305", shell.script)
    assert result.returncode == 2
    assert "--keep-warm=while:4194305: no process has this pid" in result.stderr
    result = shell.relight("run", "--keep-warm", "5", shell.script)
    assert result.returncode == 2
    assert "--keep-warm=5" in result.stderr
    result = shell.relight("run", "--keep-warm", "--no-python", "true")
    assert result.returncode == 0
    assert "--keep-warm has no effect with --no-python" in result.stderr


def test_second_start_of_short_script_preloads_its_modules(shell: Shell) -> None:
    """The script ends before a process could import its modules alongside it."""
    module = shell.packages / "slow.py"
    module.write_text("import time\ntime.sleep(0.1)\n")
    shell.script.write_text("import slow\nprint('trains')\n")
    words = ("run", "--preload=auto", "-v", "--nproc-per-node=4", shell.script)
    assert "not known yet" in shell.relight(*words).stderr
    assert "workers start with preloaded modules" in shell.relight(*words).stderr
