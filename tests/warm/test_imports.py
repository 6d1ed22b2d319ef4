"""Side effects of imports: the module is not used, a reason is shown, and nothing remains."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, Launch, Start, clean_environment
from test_orphans import marked, marker, wait_until_gone, wait_until_up  # noqa: F401

import relight

Script = Callable[..., Path]
PYTHONPATH = os.environ.get("PYTHONPATH", "")
SAYS_RAN = "print('ran', flush=True)"
FAILS_ONCE = """
import os, sys
print('ran', flush=True)
sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')
"""
IMPATIENT = (
    sys.executable, "-c",
    "from relight.warm import preloading, warm_spawner\n"
    "warm_spawner.ANSWER_S = preloading.ANSWER_S = preloading._SILENT_S = 1.0\n"
    "preloading._waits = lambda *_: True\n"
    "from relight.cli.main import entry; entry()",
)  # fmt: skip
ONE_PROCESSOR = f"exec taskset -c {min(os.sched_getaffinity(0))} {sys.executable}"
"""With many workers per processor, the first generation waits for named modules."""


@pytest.fixture
def library(script: Script, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Write a module that the job preloads; return the variables that make it importable."""

    def write(text: str, name: str = "culprit") -> dict[str, str]:
        (tmp_path / "lib").mkdir(exist_ok=True)
        script(text, f"lib/{name}.py")
        return {"PYTHONPATH": os.pathsep.join([PYTHONPATH, str(tmp_path / "lib")])}

    return write


Library = Callable[..., dict[str, str]]

UNFIT = {
    "a lock": ("import multiprocessing\nlock = multiprocessing.Lock()", "memory that is shared"),
    "a shared map": ("import mmap\nm = mmap.mmap(-1, 4096)", "memory that is shared between"),
    "a directory": ("import os\nos.chdir('/')", "culprit changes the working directory"),
    "a timer": (
        "import signal\nsignal.setitimer(signal.ITIMER_VIRTUAL, 1000)",
        "culprit starts a timer",
    ),
    "an alarm": ("import signal\nsignal.alarm(1000)", "culprit starts a timer"),
    "sys.path": ("import sys\nsys.path.insert(0, '/nowhere')", "culprit changes sys.path"),
    "a thread": (
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
        "culprit starts a thread",
    ),
    "a directory of its own": ("import tempfile\nd = tempfile.mkdtemp()", "creates a temporary"),
    "the name of one": (
        "import tempfile\nd = tempfile.TemporaryDirectory()\nname = d.name", "creates a temporary"
    ),
    "a file in one": (
        "import tempfile\nd = tempfile.TemporaryDirectory()\nopen(d.name + '/x', 'w').close()",
        "creates a temporary",
    ),
    "a temporary file": (
        "import os, tempfile\nfd, name = tempfile.mkstemp()\nos.close(fd)", "creates a temporary"
    ),
    "a socket": ("import socket\ns = socket.socket()", "culprit opens socket:"),
    "a child": (
        "import subprocess\np = subprocess.Popen(['sleep', '0.1'])", "culprit starts a process"
    ),
    "sys.exit": ("import sys\nsys.exit(3)", "can't be imported: SystemExit(3)"),
    "missing": ("import no_such_module", "No module named 'no_such_module'"),
    "a file": ("file = open('/dev/zero')", "culprit opens /dev/zero"),
    "a daemon": (
        "import os, subprocess\nsubprocess.run(['sh', '-c', 'setsid sleep 600 &'])",
        "culprit starts a process",
    ),
    "a signal": ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "it ends the process"),
    "an exit": ("import os\nos._exit(3)", "it ends the process"),
    "an exception": ("print('never')\n1 / 0", "can't be imported: ZeroDivisionError"),
    "few files": ("import resource\nresource.setrlimit(7, (6, 6))", "Too many open files"),
    "get": ("import os\nrank = os.environ.get('RANK')", "culprit reads RANK"),
    "a branch": ("import os\nif int(os.environ['RANK']):\n    first = 1", "culprit reads RANK"),
    "bytes": ("import os\nrank = os.environb.get(b'RANK')", "culprit reads RANK"),
    "dict": ("import os\nold = dict(os.environ)", "keeps "),
    "items": ("import os\nold = list(os.environ.items())", "keeps "),
    "many bytes": ("import os\nold = dict(os.environb)", "keeps "),
    "a string": ("import os\nold = [[(f'{n}={os.environ[n]}',) for n in os.environ]]", "keeps "),
    "a number": (
        "import os\nold = {int(v) for n, v in os.environ.items() if n == 'RANK'}", "keeps RANK"
    ),
    "a closure": (
        "import os\ndef outer(old):\n    return lambda: old\nf = outer({**os.environ})", "keeps "
    ),
}  # fmt: skip


def test_each_worker_has_its_own_temporary_directory(
    launch: Launch, script: Script, library: Library, tmp_path: Path
) -> None:
    """If an import creates a TemporaryDirectory, each worker has its own and removes it."""
    found = library("import tempfile\nd = tempfile.TemporaryDirectory('media', 'of-')")
    (tmp_path / "tmp").mkdir()
    result = launch(
        "run", "--preload=culprit", "--nproc-per-node=3", "-v",
        script("import culprit, os\nprint(culprit.d.name, os.listdir(culprit.d.name))"),
        TMPDIR=str(tmp_path / "tmp"), **found,
    )  # fmt: skip
    assert "workers start with preloaded modules" in result.stderr, result.stderr
    names = {line.removesuffix(" []") for line in result.stdout.splitlines()}
    assert len(names) == 3
    base = str(tmp_path / "tmp" / "of-")
    assert all(n.startswith(base) and n.endswith("media") for n in names)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_module_that_workers_cannot_share_is_not_preloaded(
    launch: Launch, script: Script, library: Library
) -> None:
    """Modules that workers can't share, and their dependents, are left out; others are loaded."""
    found = library("print('imported')\nimport csv", "fits")
    names = {what: f"culprit{number}" for number, what in enumerate(UNFIT)}
    for what, name in names.items():
        script(UNFIT[what][0], f"lib/{name}.py")
    script(f"import {names['a thread']}", "lib/needs.py")
    script(f"try:\n    import {names['a lock']}\nexcept BaseException:\n    pass", "lib/tries.py")
    modules = ["needs", *names.values(), "fits", "tries", "json"]
    result = launch(
        "run", f"--preload={','.join(modules)}", "--nproc-per-node=2", "-v",
        script("import sys, fits\nprint({'csv', 'json'} <= set(sys.modules),\n"
               "      [n for n in sys.modules if n.startswith(('culprit', 'needs', 'tries'))])"),
        **found,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "workers start with preloaded modules" in result.stderr, result.stderr
    assert sorted(result.stdout.splitlines()) == ["True []"] * 2 + ["imported"] * 2
    assert "workers start with preloaded modules" in result.stderr
    why = dict(re.findall(r"preload: (\w+) is not preloaded: (.*)", result.stderr))
    assert why.keys() == {"needs", "tries", *names.values()}
    for what, (_, reason) in UNFIT.items():
        assert reason.replace("culprit", names[what]) in why[names[what]]
    assert "needs starts a thread" in why["needs"]
    assert f"it needs {names['a lock']}" in why["tries"]


def test_dependencies_that_cannot_be_shared_are_found_in_few_trials(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    """An unfit module imports 100 others. All fit modules are loaded after a few trials, instead of
    one trial per module.
    """
    (tmp_path / "site-packages").mkdir()
    unfit = (50, 70)
    for number in range(100):
        script("import os\nos.environ.get('RANK')" if number in unfit else "",
               f"site-packages/part{number}.py")  # fmt: skip
    names = [f"part{number}" for number in range(100)]
    script(f"import os, {', '.join(names)}\nos.environ.get('RANK')", "site-packages/culprit.py")
    script(
        """
import sys
preload = sys.modules.get("relight.preload.importer")
if preload is not None:
    def counted(*arguments, attempt=preload.attempt):
        with open("trials", "a") as file:
            file.write("one\\n")
        return attempt(*arguments)
    preload.attempt = counted
""",
        "site-packages/sitecustomize.py",
    )
    result = launch(
        "run", "--preload=culprit", "-v",
        script("import sys\nprint(*(n for n in sys.meta_path[0]._hidden if n[:4] == 'part'))"),
        PYTHONPATH=os.pathsep.join([PYTHONPATH, str(tmp_path / "site-packages")]),
    )  # fmt: skip
    assert result.stdout.split() == [x for x in names if int(x[4:]) not in unfit], result.stderr
    assert "culprit is not preloaded: part50 reads RANK" in result.stderr
    assert (tmp_path / "trials").read_text().count("one") < 15


def test_only_imports_that_read_all_variable_values_are_searched() -> None:
    """Searching everything that was imported takes seconds. A module that only reads the names, as
    most do, can't have kept a value.
    """
    program = """
import os
from relight.preload import env_tracer as watch
searched = []
watch._search = lambda marks: searched.append(1) or ""
watched = watch.Watch(["RANK"])
for look in (
    lambda: [os.environ[name] for name in os.environ if name.startswith("TQDM_")],
    lambda: [value for name, value in os.environ.items() if name.startswith("TQDM_")],
    lambda: dict(os.environ),
):
    watched.begin()
    look()
    watched.check()
    print(len(searched))
"""
    result = subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env=clean_environment(),
        check=False,
    )
    assert result.stdout.split() == [b"0", b"1", b"2"]


LOOPS = """
import os
from relight.preload.env_tracer import Watch
os.environ.update({f"OTHER_{number}": "" for number in range(100)})
watch = Watch(["RANK"])
dict((name, value) for name, value in os.environ.items() if name.startswith("TQDM_"))
for value in os.environ.values():
    pass
dict(os.environ)
watch.end()
print(watch.reads, "TQDM_" in watch.prefixes["__main__"])
"""


@pytest.mark.parametrize("version", ["3.11.7", "3.12.1", "3.13.0", "3.14.0"])
def test_iterating_over_environment_does_not_count_as_reading_each_variable(version: str) -> None:
    """The import of tqdm has such a loop. A warm process does not depend on variables that the loop
    skips, such as TORCHELASTIC_RUN_ID, which differs between jobs.
    """
    python = Path.home() / ".pyenv" / "versions" / version / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no Python {version}")
    source = str(Path(relight.__file__).parents[1])
    result = subprocess.run(
        [python, "-c", LOOPS],
        env=clean_environment(PYTHONPATH=source),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout == "{} True\n", result.stderr


BROKEN = {
    "no descriptors": ("import socket\nsocket.recv_fds = None", "TypeError"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_process_is_not_forked_if_import_makes_forking_unsafe(
    what: str, launch: Launch, script: Script, library: Library
) -> None:
    """A process that can't fork workers is not used, and the reason is reported."""
    text, reason = BROKEN[what]
    result = launch(
        "run", "--preload=csv,culprit", "--nproc-per-node=2", "-v", script(SAYS_RAN),
        **library(text),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout == "ran\nran\n"
    assert "workers start without preloaded modules: " in result.stderr
    assert reason in result.stderr


@pytest.mark.parametrize(
    "text",
    ["import sys\nsys.path.append('/nowhere')", "import os\nhome = os.environ.get('HOME')",
     "import mmap\nm = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE)",
     "import os\nmine = {k: v for k, v in os.environ.items() if k.startswith('CULPRIT_')}",
     "import os\nmine = {k: v for k, v in dict(os.environ).items() if k.startswith('CULPRIT_')}",
     "import os\nhas = 'RANK' in os.environ\nnames = list(os.environ)"],
    ids=["end of sys.path", "another variable", "memory of its own", "a prefix", "a copy",
         "a name"],
)  # fmt: skip
def test_harmless_side_effects_of_imports_allow_forking(
    text: str, launch: Launch, script: Script, library: Library
) -> None:
    """Effects that each worker's own import would also have don't force a cold start."""
    result = launch("run", "--preload=culprit", "-v", script(SAYS_RAN), **library(text))
    assert "workers start with preloaded modules" in result.stderr, result.stderr


def test_variable_read_by_sitecustomize_is_detected(
    launch: Launch, script: Script, library: Library
) -> None:
    """Even code that reads a worker's variables before any module is imported is noticed."""
    found = library("import os\nrank = os.environ.get('RANK')", "sitecustomize")
    result = launch("run", "--preload=json", "-v", script(SAYS_RAN), **found)
    assert result.stdout == "ran\n", result.stderr
    assert "sitecustomize reads RANK when it is imported" in result.stderr


def test_hanging_fork_is_abandoned(launch: Launch, script: Script, library: Library) -> None:
    """Workers that are not forked in time start cold, in the same generation."""
    found = library("import os, time\nos.register_at_fork(before=lambda: time.sleep(1000))")
    result = launch("run", "--preload=culprit", "--max-restarts=1", "-v", script(FAILS_ONCE),
                    command=IMPATIENT, **found)  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout == "ran\nran\n"
    assert (
        "workers start without preloaded modules: it has not forked the workers within 1 s"
        in result.stderr
    )


def test_message_names_module_whose_import_hangs(
    start: Start, script: Script, library: Library
) -> None:
    """While the first generation waits, a message names the module that is being imported."""
    agent = start("run", "--preload=json,culprit", script(SAYS_RAN), command=IMPATIENT,
                  variables=library("import time\ntime.sleep(1000)"))  # fmt: skip
    assert agent.stderr is not None
    line = agent.stderr.readline()
    assert b"preload: culprit is being imported (pid " in line
    assert b"the workers start when this is done, or without it after " in line
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(LIMIT_S) == 128 + signal.SIGTERM


@pytest.mark.parametrize("end", ["1 / 0", "os._exit(3)", "pass", "time.sleep(1000)"])
def test_failed_import_leaves_no_process_behind(
    end: str,
    start: Start,
    script: Script,
    library: Library,
    marker: str,
    tmp_path: Path,
) -> None:
    """The import's child processes end when it fails, exits, or is interrupted."""
    text = f"""
import os, subprocess, time
subprocess.Popen(["sleep", "{marker}"])
subprocess.run(["sh", "-c", "setsid sleep {marker} >&- 2>&- &"])
{end}
"""
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        agent = start("run", "--preload=culprit", "-v", script("import time\ntime.sleep(1000)"),
                      stderr=stderr, variables=library(text))  # fmt: skip
    if "sleep" in end:
        wait_until_up(marker, 2)
        agent.send_signal(signal.SIGINT)
    else:
        deadline = time.monotonic() + LIMIT_S
        while "local rank 0) is pid" not in log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        wait_until_gone(marker, LIMIT_S)  # including those from a second attempt
        agent.send_signal(signal.SIGTERM)
    agent.wait(LIMIT_S)
    assert marked(marker) == []


def test_many_workers_start_despite_low_descriptor_limit(launch: Launch, script: Script) -> None:
    """The agent raises its own limit as far as possible; its workers keep the user's limit."""
    path = script("import resource\nprint(resource.getrlimit(7)[0])")
    limited = ("sh", "-c", f'ulimit -Sn 64; {ONE_PROCESSOR} -m relight "$@"', "sh")
    for flags in ((), ("--preload=json",)):
        result = launch("run", *flags, "-v", "--nproc-per-node=40", path, command=limited)
        assert result.returncode == 0, result.stderr
        assert result.stdout.split() == ["64"] * 40
        assert ("workers start with preloaded modules" in result.stderr) == bool(flags)


def test_low_descriptor_limit_error_shows_the_limit(launch: Launch, script: Script) -> None:
    """If even the hard limit is too low, the hint names that limit."""
    limited = ("sh", "-c", 'ulimit -n 64; exec "$0" -m relight "$@"', sys.executable)
    result = launch("run", "--nproc-per-node=100", script(SAYS_RAN), command=limited)
    assert result.returncode != 0
    assert "ulimit -n" in result.stderr, result.stderr


def test_job_in_removed_directory_starts_warm(start: Start, script: Script, tmp_path: Path) -> None:
    """If the working directory was removed, workers start warm in the same way as cold."""
    (tmp_path / "gone").mkdir()
    path = script(SAYS_RAN)
    text = f"cd {tmp_path}/gone; rmdir {tmp_path}/gone; {ONE_PROCESSOR} -m relight run"
    flags = "--nproc-per-node=2 --preload=json -v"
    agent = start("-c", f"{text} {flags} {path}", command=("sh",))
    output, errors = agent.communicate(timeout=LIMIT_S)
    assert output == b"ran\nran\n", errors
    assert b"workers start with preloaded modules" in errors


def test_preloading_local_module_is_rejected_with_a_reason(launch: Launch, script: Script) -> None:
    """The reason tells users why their own module is not found."""
    script("", "own.py")
    result = launch("run", "--preload=own", "--", script(SAYS_RAN))
    assert "modules beside the script are not preloaded" in result.stderr


def test_file_of_main_module_is_absolute_during_preload(
    launch: Launch, script: Script, library: Library
) -> None:
    """An import that reads `__main__.__file__` sees the same value as in a worker."""
    found = library("import __main__\nfile = __main__.__file__")
    script("import culprit\nprint(culprit.file == __file__)")
    result = launch("run", "--preload=culprit", "-v", "train.py", **found)
    assert result.stdout == "True\n", result.stderr
    assert "workers start with preloaded modules" in result.stderr


def test_stream_settings_changed_by_imports_are_kept(
    launch: Launch, script: Script, library: Library
) -> None:
    """If a module enables line buffering, the worker also gets it."""
    found = library("import sys\nsys.stdout.reconfigure(line_buffering=True)")
    path = script("import culprit, sys\nprint(sys.stdout.line_buffering)")
    result = launch("run", "--preload=culprit", "-v", path, **found)
    assert result.stdout == "True\n", result.stderr
    assert "workers start with preloaded modules" in result.stderr


def test_excessive_output_from_imports_is_truncated(
    launch: Launch, library: Library, script: Script
) -> None:
    """Each worker shows the first part, and a line says how much is left out."""
    found = library("import sys\nsys.stdout.write('x' * 3_000_000)")
    result = launch("run", "--preload=culprit", "-v", script("print('main')"), **found)
    assert result.returncode == 0, result.stderr
    end = (
        "\nrelight: %d more bytes were printed by preloaded modules, and are left out here\nmain\n"
    )
    assert result.stdout == "x" * 65536 + end % (3_000_000 - 65536)


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_processes_started_by_imports_end_with_agent(
    how: str, start: Start, script: Script, library: Library, marker: str
) -> None:
    """An agent that is killed while --preload imports leaves no processes of the import behind."""
    found = library(
        "import subprocess, time\n"
        "for command in (['sleep'], ['setsid', 'sleep'], ['env', '-i', 'setsid', 'sleep']):\n"
        f"    subprocess.Popen([*command, {marker!r}])\n"
        "time.sleep(1000)"
    )
    agent = start("run", "--preload=culprit", script(SAYS_RAN), marker,
                  variables=found)  # fmt: skip
    wait_until_up(marker, 5)  # including the agent and the importing process
    if how == "stopped":
        for pid in marked(marker):
            os.kill(pid, signal.SIGSTOP)
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    wait_until_gone(marker, LIMIT_S)


def test_unseeded_random_generators_are_reseeded_in_each_worker(
    launch: Launch, script: Script, library: Library, tmp_path: Path
) -> None:
    """A generator that was created during an import draws different numbers in each worker, unless
    it was seeded. The key in dill's multiprocess is redrawn like the one in multiprocessing.
    """
    found = library("import random\na, b = random.Random(), random.Random(5)")
    (tmp_path / "lib/multiprocess").mkdir()
    script("process = type('Process', (), {'authkey': b'x'})()\n"
           "current_process = lambda: process", "lib/multiprocess/process.py")  # fmt: skip
    path = script("import culprit, multiprocess.process as m\n"
                  "a, b = culprit.a.random(), culprit.b.random()\n"
                  "print(a, b, m.process.authkey.hex())")  # fmt: skip
    result = launch("run", "--preload=culprit,multiprocess.process", "--nproc-per-node=2", "-v",
                    path, **found)  # fmt: skip
    assert "workers start with preloaded modules" in result.stderr, result.stderr
    (a, b, key), (c, d, other) = (line.split() for line in result.stdout.splitlines())
    assert a != c and b == d
    assert key != other


def test_pickle_finds_objects_from_c_in_the_same_module_as_in_cold_workers(
    launch: Launch, script: Script, library: Library
) -> None:
    """Keys in the cache of torch.compile contain this module. Objects from C don't name theirs, so
    pickle takes the first one with an attribute `culprit`, which may be the script itself, under
    the name that multiprocessing gives to it.
    """
    library("import culprit", "user")
    found = library("class Format:\n"
                    "    __module__ = None\n"
                    "    def __reduce__(self): return 'culprit.channels_last'\n"
                    "channels_last = Format()\n"
                    "import user, multiprocessing")  # fmt: skip
    path = script("import culprit, pickle\nprint(pickle.dumps(culprit.channels_last))")
    ran = [launch("run", f"--preload={names}", "--nproc-per-node=2", "-v", path, **found)
           for names in ("off", "culprit,user")]  # fmt: skip
    assert "workers start with preloaded modules" in ran[1].stderr, ran[1].stderr
    cold, warm = (set(each.stdout.splitlines()) for each in ran)
    assert len(cold) == 1 and warm == cold, ran[0].stderr
    assert "user" in cold.pop()
