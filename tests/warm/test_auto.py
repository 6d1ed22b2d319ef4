"""--preload=auto: the modules are learned from a worker, without it noticing."""

import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, Start, clean_environment, wait_for_event

Script = Callable[..., Path]
SOON = (
    sys.executable, "-c",
    "from relight.core.workers import import_ahead\n"
    "import_ahead.LEARN_S, import_ahead.QUIET_S = 0.3, 0.5\n"
    "from relight.cli.main import entry; entry()",
)  # fmt: skip


PLAIN = ("setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice")
"""Runs a program like an ordinary user, unable to raise a low priority again."""


def events(logs: Path, kind: str) -> list[dict[str, object]]:
    found = [json.loads(x) for x in next(logs.glob("*/events.jsonl")).read_text().splitlines()]
    return [event for event in found if event["event"] == kind]


@pytest.fixture
def run(start: Start, script: Script, tmp_path: Path) -> Callable[..., Path]:
    def run(
        text: str,
        *,
        under: tuple[str, ...] = (),
        launcher: tuple[str, ...] = SOON,
        workers: int = 1,
        **variables: str,
    ) -> Path:
        """Run `text` in two generations, the second one warm; return the log directory."""
        path = script(
            text
            + """
import os, pathlib, sys, time
restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
if restart == "1":
    print(*sorted({"csv", "multiprocessing", "own", "parts.one", "tomllib"} & before), flush=True)
    sys.exit(0)
while not os.path.exists("go"):
    time.sleep(0.01)
sys.exit(1)
"""
        )
        logs = tmp_path / "logs"
        agent = start("run", "--preload=auto", "--max-restarts=1", f"--log-dir={logs}", "-r1",
                      f"--nproc-per-node={workers}",
                      path, command=(*under, *launcher), variables=variables)  # fmt: skip
        wait_for_event(agent, logs, "PreloadReady")
        (tmp_path / "go").touch()
        assert agent.wait(LIMIT_S) == 0
        return logs

    return run


BEFORE = """
import sys
before = {*sys.modules, *getattr(sys.meta_path[0], "_hidden", ())}
"""


def test_second_generation_preloads_modules_imported_by_first(
    run: Callable[..., Path], script: Script
) -> None:
    """Installed modules that the first generation imported are preloaded. The user's own modules
    aren't, and neither are modules that were only looked up, as torch does with many packages.
    """
    script("", "own.py")
    logs = run(
        BEFORE  # multiprocessing has a second name for the script: __mp_main__
        + """
import csv, importlib.util, multiprocessing, own
importlib.util.find_spec("tomllib")
try:
    import no_such_module
except ImportError:
    pass
"""
    )
    assert [event["warm"] for event in events(logs, "WorkersForked")] == [False, True]
    assert not events(logs, "PreloadWithout")
    printed = next(logs.glob("*/attempt_1/0/stdout.log")).read_text()
    assert printed == "csv multiprocessing\n"


@pytest.mark.needs_root
def test_unprivileged_warm_workers_have_normal_priority(run: Callable[..., Path]) -> None:
    """Even if a process can't leave SCHED_IDLE again, warm workers don't run with idle priority."""
    logs = run(
        BEFORE + "import csv, os\nprint(os.sched_getscheduler(0), os.getpriority(0, 0))",
        under=PLAIN,
    )
    assert [event["warm"] for event in events(logs, "WorkersForked")] == [False, True]
    cold, warm = (next(logs.glob(f"*/attempt_{n}/0/stdout.log")).read_text() for n in (0, 1))
    assert cold == f"{os.SCHED_OTHER} {os.getpriority(os.PRIO_PROCESS, 0)}\n"
    assert warm == cold + "csv\n"


def test_user_module_on_pythonpath_is_not_preloaded(
    run: Callable[..., Path], script: Script, tmp_path: Path
) -> None:
    """Modules that are not installed remain the user's own, wherever they are found."""
    (tmp_path / "lib").mkdir()
    script("import csv", "lib/own.py")
    path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(tmp_path / "lib")])
    logs = run(BEFORE + "import own", PYTHONPATH=path)
    assert [event["warm"] for event in events(logs, "WorkersForked")] == [False, True]
    assert next(logs.glob("*/attempt_1/0/stdout.log")).read_text() == "csv\n"


def test_modules_in_site_packages_on_pythonpath_count_as_installed(
    run: Callable[..., Path], script: Script, tmp_path: Path
) -> None:
    """The directory's name is what counts; omitted modules are reported."""
    for folder in ("site-packages/parts", "lib"):
        (tmp_path / folder).mkdir(parents=True)
    script("import csv", "site-packages/own.py")
    script("", "site-packages/parts/one.py")
    script("import tomllib", "lib/mine.py")
    folders = [os.environ.get("PYTHONPATH", ""), tmp_path / "site-packages", tmp_path / "lib"]
    path = os.pathsep.join(map(str, folders))
    logs = run(BEFORE + "import own, mine, parts.one", PYTHONPATH=path)
    assert [event["left_out"] for event in events(logs, "PreloadReady")] == ["mine"]
    printed = next(logs.glob("*/attempt_1/0/stdout.log")).read_text()
    assert printed == "csv own parts.one tomllib\n"


def test_import_tracing_does_not_change_environment_sys_path_or_modules(
    run: Callable[..., Path],
) -> None:
    # Debian's Python has a sitecustomize of its own.
    command = [sys.executable, "-c", "import sys; print('sitecustomize' in sys.modules)"]
    own = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    logs = run(
        BEFORE
        + """
import os
names = {name for name in os.environ if name.startswith("RELIGHT_")}
assert names == {"RELIGHT_MISTAKES", "RELIGHT_RECOVERY"}
assert not [path for path in sys.path if path.endswith("hook")], sys.path
assert os.environ.get("PYTHONPATH") == os.environ["EXPECTED"]
assert ("sitecustomize" in sys.modules) is (os.environ["OWN_SITECUSTOMIZE"] == "True")
assert os.path.basename(sys._getframe().f_code.co_filename) == "train.py"
""",
        EXPECTED=os.environ.get("PYTHONPATH", ""),
        OWN_SITECUSTOMIZE=own,
        PYTHONPATH=os.environ.get("PYTHONPATH", ""),
    )
    assert [event["warm"] for event in events(logs, "WorkersForked")] == [False, True]


def test_import_tracing_waits_for_slow_interpreter_start(
    run: Callable[..., Path], tmp_path: Path
) -> None:
    """If a worker has imported nothing when it is first inspected, it is inspected again."""
    venv.create(tmp_path / "env", symlinks=True)
    (installed,) = (tmp_path / "env" / "lib").glob("python3*/site-packages")
    (installed / "slow.pth").write_text("import time; time.sleep(1)\n")
    logs = run(BEFORE + "import csv", PYTHON_EXEC=str(tmp_path / "env" / "bin" / "python"))
    assert [event["warm"] for event in events(logs, "WorkersForked")] == [False, True]


def test_user_sitecustomize_runs_in_traced_and_forked_workers(
    run: Callable[..., Path], script: Script, tmp_path: Path
) -> None:
    (tmp_path / "lib").mkdir()
    script("import os\nx = 5", "lib/sitecustomize.py")
    path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(tmp_path / "lib")])
    logs = run(BEFORE + "import sitecustomize\nassert sitecustomize.x == 5\n", PYTHONPATH=path)
    assert [event["warm"] for event in events(logs, "WorkersForked")] == [False, True]


def test_package_next_to_script_is_not_imported_from_site_packages(
    run: Callable[..., Path], script: Script, tmp_path: Path
) -> None:
    """In a clone of timm in an environment with timm, for example, no import is wasted."""
    (tmp_path / "site-packages").mkdir()
    script("import tomllib", "site-packages/own.py")
    script("import csv", "own.py")
    folders = [str(tmp_path / "site-packages"), os.environ.get("PYTHONPATH", "")]
    logs = run(BEFORE + "import own", PYTHONPATH=os.pathsep.join(filter(None, folders)))
    assert not events(logs, "PreloadWithout")
    assert [event["left_out"] for event in events(logs, "PreloadReady")] == ["own"]
    assert next(logs.glob("*/attempt_1/0/stdout.log")).read_text() == "csv\n"


def test_package_that_starts_a_thread_is_not_preloaded(
    run: Callable[..., Path], script: Script, tmp_path: Path
) -> None:
    """The workers' own virtual environment is used; modules that start a thread are left out."""
    venv.create(tmp_path / "env", symlinks=True)
    (installed,) = (tmp_path / "env" / "lib").glob("python3*/site-packages")
    thread = "import threading, time\n"
    thread += "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    script(thread, str(installed / "noisy.py"))
    script("", str(installed / "own.py"))
    logs = run(
        BEFORE + "import csv, noisy, own\nassert 'noisy' not in before",
        PYTHON_EXEC=str(tmp_path / "env" / "bin" / "python"),
    )
    assert not events(logs, "PreloadUnfit")
    reasons = [str(event["reason"]) for event in events(logs, "PreloadWithout")]
    assert reasons == ["noisy starts a thread"]
    assert [event["warm"] for event in events(logs, "WorkersForked")] == [False, True]
    assert next(logs.glob("*/attempt_1/0/stdout.log")).read_text() == "csv own\n"


NEVER = (*SOON[:2], SOON[2].replace("0.3, 0.5", "1000, 1000"))
"""Starts a launcher that takes too long to learn what workers import."""


def test_next_job_with_same_script_reuses_list_of_imports(
    run: Callable[..., Path], start: Start, tmp_path: Path, script: Script
) -> None:
    """The next job doesn't learn the modules again or retry unfit ones, but still reports those."""
    venv.create(tmp_path / "env", symlinks=True)
    (installed,) = (tmp_path / "env" / "lib").glob("python3*/site-packages")
    thread = "import threading, time\n"
    thread += "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    script(thread + f"open({str(tmp_path / 'tried')!r}, 'a').write('x')\n",
           str(installed / "noisy.py"))  # fmt: skip
    script("", str(installed / "own.py"))
    text = BEFORE + "import csv, own\nif not before & {'own'}: import noisy"
    python = str(tmp_path / "env" / "bin" / "python")
    first = run(text, PYTHON_EXEC=python)
    tried = (tmp_path / "tried").read_text()
    (tmp_path / "go").unlink()
    for entry in first.iterdir():
        entry.rename(tmp_path / entry.name)
    second = run(text, PYTHON_EXEC=python, launcher=NEVER)
    assert [event["warm"] for event in events(second, "WorkersForked")] == [False, True]
    assert next(second.glob("*/attempt_1/0/stdout.log")).read_text() == "csv own\n"
    reasons = [str(event["reason"]) for event in events(second, "PreloadWithout")]
    assert reasons == ["noisy starts a thread"]
    assert (tmp_path / "tried").read_text() == tried + "x"  # by the first, cold worker


def test_module_whose_name_is_not_an_identifier_is_not_preloaded(
    run: Callable[..., Path], script: Script, tmp_path: Path
) -> None:
    """importlib.import_module accepts names that an import statement can't contain."""
    folder = tmp_path / "site-packages" / "good"
    folder.mkdir(parents=True)
    script("", str(folder / "__init__.py"))
    script("raise RuntimeError", str(folder / "my file.py"))
    path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(folder.parent)])
    text = BEFORE + "import csv, good, importlib\ntry: importlib.import_module('good.my file')\n"
    logs = run(text + "except RuntimeError: pass", PYTHONPATH=path)
    assert [event["warm"] for event in events(logs, "WorkersForked")] == [False, True]
    assert not events(logs, "PreloadWithout")


def test_script_known_to_set_variables_during_imports_starts_cold(
    run: Callable[..., Path], start: Start, script: Script, tmp_path: Path
) -> None:
    """The next job would otherwise wait for the modules; the script itself sets no variables."""
    text = BEFORE + "import csv, importlib\nimportlib.import_module('own')"
    script("import os\nos.environ['X_FLAG'] = 'set'", "own.py")
    first = run(text)
    (tmp_path / "go").unlink()
    for entry in first.iterdir():
        entry.rename(tmp_path / entry.name)
    crowded = SOON[2].replace("import_ahead.LEARN_S", "from relight.warm import preloading\n"
        "preloading.os.sched_getaffinity = lambda pid: {0}\nimport_ahead.LEARN_S", 1)  # fmt: skip
    second = run(text, launcher=(*SOON[:2], crowded), workers=2)
    assert [event["warm"] for event in events(second, "WorkersForked")] == [False, True]


@pytest.mark.needs_root
def test_priority_of_background_import_rises_over_time() -> None:
    """On a busy machine, an import at the lowest priority gets a quarter of a processor after a
    while, and finally the usual priority. This also holds for a copy that replaces it.
    """
    program = """
import os, time
from relight.host import priority
from relight.preload.guard import AgentProcess, stand_guard
from relight.preload.speculative_import import UnfitError, attempt

def wait_for(nice):
    end = time.monotonic() + 180
    while os.getpriority(os.PRIO_PROCESS, 0) - usual != nice and time.monotonic() < end:
        time.sleep(0.01)
    print(os.sched_getscheduler(0), os.getpriority(0, 0) - usual, flush=True)

def spoil(child):
    raise UnfitError("x", "x")

priority.IDLE_S, priority.GENTLE_S = 1.0, 2.5
usual = os.getpriority(0, 0)
reader, writer = os.pipe()
guard = stand_guard(AgentProcess.parent(writer))
restore = priority.lower()
print(os.sched_getscheduler(0), os.getpriority(0, 0) - usual, flush=True)
spoiled = attempt(spoil, guard)
assert spoiled is not None
wait_for(5)
assert attempt(spoil, guard) is not None
wait_for(5)
wait_for(0)
guard.outlive_guard()
restore()
print(os.sched_getscheduler(0), os.getpriority(0, 0) - usual, flush=True)
"""
    result = subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env=clean_environment(),
        start_new_session=True,  # not to change the priority of all tests (sched(7), autogroup)
        check=False,
    )
    idle, usual = os.SCHED_IDLE, os.SCHED_OTHER
    assert result.stdout.decode().split() == [
        str(word) for word in (idle, 0, usual, 5, usual, 5, usual, 0, usual, 0)
    ]


TORCH = {
    "torch/__init__.py": "from torch import optim",
    "torch/optim/__init__.py": "from torch.optim import optimizer, sgd",
    "torch/optim/optimizer.py": """
hooks = []
def register_optimizer_step_post_hook(hook):
    hooks.append(hook)
""",
    "torch/optim/sgd.py": """
from torch.optim import optimizer
def step():
    for hook in optimizer.hooks:
        hook(None, (), {})
""",
    **{
        f"{x}/{y}.py": "" for x in ("late", "more") for y in ("__init__", "part0", "part1", "part2")
    },
}
"""A fake of the part of torch that reports the first step."""
STEPS = """
import os, sys, time
restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
names = {"late.part0", "more.part0"}
print(*sorted(names & {*getattr(sys.meta_path[0], "_hidden", ())}), flush=True)

def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)

import torch
"""


class Steps:
    """A job whose script does steps, with a launcher that learns quickly.

    Args:
        text: The part of the script after its import of torch.
    """

    def __init__(self, start: Start, script: Script, tmp_path: Path, text: str) -> None:
        packages = tmp_path / "site-packages"
        for name, source in TORCH.items():
            (packages / name).parent.mkdir(parents=True, exist_ok=True)
            script(source, str(packages / name))
        path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(packages)])
        self.logs = tmp_path / "logs"
        self._folder = tmp_path
        self._agent = start(
            "run", "--preload=auto", "--max-restarts=2", f"--log-dir={self.logs}", "-r1",
            script(STEPS + text), command=SOON, variables={"PYTHONPATH": path},
        )  # fmt: skip

    def await_ready(self, times: int) -> None:
        """Wait until this many processes have imported the modules."""
        deadline = time.monotonic() + LIMIT_S
        while not (list(self.logs.glob("*/events.jsonl")) and self.ready() >= times):
            assert time.monotonic() < deadline and self._agent.poll() is None
            time.sleep(0.02)

    def ready(self) -> int:
        return len(events(self.logs, "PreloadReady"))

    def go(self, name: str) -> None:
        (self._folder / name).touch()

    def preloaded(self, attempts: int) -> "list[str]":
        """Wait for the end; return the modules that each attempt had from its start."""
        assert self._agent.wait(LIMIT_S) == 0
        paths = [next(self.logs.glob(f"*/attempt_{n}/0/stdout.log")) for n in range(attempts)]
        return [path.read_text().strip() for path in paths]


def test_imports_after_long_pause_are_recorded_at_first_step(
    start: Start, script: Script, tmp_path: Path
) -> None:
    """A script that reads its data before building its model imports nothing for a longer time than
    a script that has finished its imports.
    """
    job = Steps(start, script, tmp_path, """
if restart == "0":
    time.sleep(2)
    import late.part0, late.part1, late.part2
    torch.optim.sgd.step()
    wait_for("go")
    sys.exit(1)
""")  # fmt: skip
    job.await_ready(1)
    job.go("go")
    assert job.preloaded(2) == ["", "late.part0"]
    assert len(events(job.logs, "PreloadStarted")) == 1


def test_modules_imported_after_first_step_are_preloaded_for_next_restart(
    start: Start, script: Script, tmp_path: Path
) -> None:
    """A warm generation's process must stay until its end, so a new one imports them."""
    job = Steps(start, script, tmp_path, """
torch.optim.sgd.step()
if restart == "0":
    wait_for("first")
    import late.part0, late.part1, late.part2
elif restart == "1":
    import more.part0, more.part1, more.part2
if restart != "2":
    wait_for("go" + restart)
    sys.exit(1)
""")  # fmt: skip
    job.await_ready(1)
    job.go("first")
    job.await_ready(2)
    job.go("go0")
    job.await_ready(3)
    job.go("go1")
    assert job.preloaded(3) == ["", "late.part0", "late.part0 more.part0"]
    assert [event["warm"] for event in events(job.logs, "WorkersForked")] == [False, True, True]
