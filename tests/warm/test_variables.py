"""If a script sets a variable before an import, the import uses it, whatever was preloaded."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, RELIGHT, Launch, Start

Script = Callable[..., Path]
LIBRARY = """
import os
value = os.environ.get("LIBRARY_MODE", "unset")
prefix = {k: v for k, v in os.environ.items() if k.startswith("LIB_")}
"""
SAYS = "import library\nprint(library.value, library.prefix, flush=True)\n"


@pytest.fixture
def library(script: Script, tmp_path: Path) -> dict[str, str]:
    """A module that reads variables during import; returns the variables with which to find it."""
    (tmp_path / "site-packages").mkdir()
    script(LIBRARY, "site-packages/library.py")
    script("", "site-packages/other.py")
    path = [os.environ.get("PYTHONPATH", ""), str(tmp_path / "site-packages")]
    return {"PYTHONPATH": os.pathsep.join(path)}


def run(launch: Launch, library: dict[str, str], path: Path, *flags: str) -> tuple[str, str]:
    """Run a script with one worker that is forked warm; return its output and relight's."""
    result = launch("run", "--preload=library,other", "-v", *flags, path, **library)
    assert result.returncode == 0, result.stderr
    assert "workers start with preloaded modules" in result.stderr
    return result.stdout, result.stderr


SETS = {
    "an item": ('os.environ["LIBRARY_MODE"] = "new"', "new {}\n"),
    "putenv": ('os.putenv("LIBRARY_MODE", "new")', "unset {}\n"),
    "a prefix": ('os.environ["LIB_X"] = "1"', "unset {'LIB_X': '1'}\n"),
    "setdefault": ('os.environ.setdefault("LIBRARY_MODE", "new")', "new {}\n"),
    "update": ('os.environ.update(LIBRARY_MODE="new")', "new {}\n"),
}


@pytest.mark.parametrize("what", SETS)
def test_variable_set_before_importing_preloaded_module_is_respected(
    what: str, launch: Launch, script: Script, library: dict[str, str]
) -> None:
    """A worker that was forked with the module starts over cold, in the same process."""
    text, expected = SETS[what]
    path = script(f"import os, other\n{text}\n{SAYS}")
    stdout, stderr = run(launch, library, path)
    assert stdout == expected
    assert ("restarts without preloaded modules" in stderr) == (what != "putenv")


NUMPY = """
import os
os.putenv("NPY_DISABLE_CPU_FEATURES", "X86_V3")
import numpy
print(numpy._core._multiarray_umath.__cpu_features__.get("X86_V3", False))
"""


def test_variable_set_with_putenv_is_seen_by_compiled_code(launch: Launch, script: Script) -> None:
    """With os.putenv alone, only code that calls getenv sees the value, as in a cold worker."""
    result = launch("run", "--preload=numpy", "-v", script(NUMPY))
    assert "workers start with preloaded modules" in result.stderr
    assert (result.returncode, result.stdout) == (0, "False\n")
    assert "sets NPY_DISABLE_CPU_FEATURES before it imports numpy" in result.stderr
    assert "restarts without preloaded modules" in result.stderr


def test_torch_variable_does_not_affect_other_compiled_modules(
    launch: Launch, script: Script
) -> None:
    """Lightning sets PYTORCH_NVML_BASED_CUDA_CHECK before matplotlib is imported."""
    path = script("import os\nos.environ['PYTORCH_X'] = '1'\nimport numpy\nprint('trains')")
    result = launch("run", "--preload=numpy", "-v", path)
    assert "workers start with preloaded modules" in result.stderr
    assert (result.stdout, "restarts without" in result.stderr) == ("trains\n", False)


@pytest.mark.parametrize(
    "text",
    ['os.environ["MINE"] = "1"', 'import library\nos.environ["LIBRARY_MODE"] = "late"',
     'os.environ["LIBRARY_MODE"] = "1"\ndel os.environ["LIBRARY_MODE"]', ""],
    ids=["another", "late", "undone", "nothing"],
)  # fmt: skip
def test_setting_variable_that_no_module_reads_does_not_restart_worker(
    text: str, launch: Launch, script: Script, library: dict[str, str]
) -> None:
    """A variable that no module has read, or that is set after the import, causes no new start."""
    stdout, stderr = run(launch, library, script(f"import os\n{text}\n{SAYS}"))
    assert stdout == "unset {}\n"
    assert "without preloaded modules" not in stderr


def test_script_that_has_written_a_file_is_not_restarted(
    launch: Launch, script: Script, library: dict[str, str], tmp_path: Path
) -> None:
    """The script continues, with a note that the variable was set too late."""
    text = 'import os\nos.mkdir("once")\nos.environ["LIBRARY_MODE"] = "new"\n'
    stdout, stderr = run(launch, library, script(text + SAYS))
    assert stdout == "unset {}\n"
    assert "sets LIBRARY_MODE before it imports library" in stderr
    assert "continues, with the value that was set at import time" in stderr


def test_preloaded_modules_stay_hidden_until_imported(
    launch: Launch, script: Script, library: dict[str, str]
) -> None:
    """A worker has the modules once it imports them, and importlib can find them before."""
    text = """
import importlib.util, sys
assert not {"library", "other"} & set(sys.modules)
spec = importlib.util.find_spec("library")
assert spec.origin.endswith("library.py") and spec.has_location
assert "library" not in sys.modules
import other
assert "library" not in sys.modules
import library
assert library.__spec__.origin == spec.origin and sys.modules["library"] is library
assert type(library.__loader__).__name__ == "SourceFileLoader"
print([type(finder).__name__ for finder in sys.meta_path if "Deferred" in repr(finder)])
"""
    assert run(launch, library, script(text))[0] == "[]\n"


def test_submodules_appear_with_their_preloaded_module(
    launch: Launch, script: Script, library: dict[str, str]
) -> None:
    """Compiled code can put modules below one that is not a package, as torch._C does. They appear
    together with that module.
    """
    below = "import sys, types\nname = __name__ + '.below'\n"
    below += "sys.modules[name] = types.ModuleType(name)\nsys.modules[name].value = 7\n"
    script(below, "site-packages/other.py")
    text = "import other\nfrom other.below import value\nprint(value)\n"
    assert run(launch, library, script(text))[0] == "7\n"


FAILS = """
import os, sys, time
restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
os.environ["LIBRARY_MODE"] = {value}
import library
print(restart, library.value, flush=True)
while restart != "{last}" and not os.path.exists("go" + restart):
    time.sleep(0.01)
sys.exit(restart != "{last}")
"""


def test_next_preload_uses_variables_set_by_first_generation(
    start: Start, script: Script, library: dict[str, str], tmp_path: Path
) -> None:
    """The first generation starts cold; its variables are set when the modules are imported."""
    path = script(FAILS.format(value="'new'", last=1))
    agent = start("run", "--preload=library", "-v", "--max-restarts=1", path, command=RELIGHT,
                  variables=library)  # fmt: skip
    assert agent.stderr is not None and agent.stdout is not None
    while b"is ready" not in agent.stderr.readline():
        assert agent.poll() is None
    (tmp_path / "go0").touch()
    output, errors = agent.communicate(timeout=LIMIT_S)
    assert output == b"0 new\n1 new\n"
    assert b"workers start with preloaded modules" in errors
    assert b"again" not in errors


def test_workers_start_cold_if_a_variable_changes_with_every_attempt(
    start: Start, script: Script, library: dict[str, str], tmp_path: Path
) -> None:
    """A variable with a different value in each attempt can't be adopted; the reason is shown."""
    path = script(FAILS.format(value="'mode' + restart", last=3))
    (tmp_path / "go2").touch()
    agent = start("run", "--preload=library", "-v", "--max-restarts=3", path, variables=library)
    assert agent.stderr is not None
    for count in range(
        2
    ):  # the first process, and the one that then imports with the variables set
        while b"is ready" not in agent.stderr.readline():
            assert agent.poll() is None
        (tmp_path / f"go{count}").touch()
    output, errors = agent.communicate(timeout=LIMIT_S)
    assert output == b"0 mode0\n1 mode1\n2 mode2\n3 mode3\n"
    assert b"sets LIBRARY_MODE before it imports, not always to the same value" in errors


VENDOR = """
import os, sys
{before}
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "vendor"))
import other, library
print(library.__file__.split(os.sep)[-2], library.below.WHO, flush=True)
"""


@pytest.mark.parametrize("before", ["", 'os.mkdir("once")'])
def test_package_placed_first_on_sys_path_is_imported(
    launch: Launch, script: Script, library: dict[str, str], before: str, tmp_path: Path
) -> None:
    """Modules below the package are found there too, even if the script can't be restarted."""
    for folder in ("vendor/library", "site-packages/library"):
        (tmp_path / folder).mkdir(parents=True)
        script("from . import below", f"{folder}/__init__.py")
        script(f"WHO = {folder.partition('/')[0]!r}", f"{folder}/below.py")
    (tmp_path / "site-packages" / "library.py").unlink()
    stdout, stderr = run(launch, library, script(VENDOR.format(before=before)))
    assert stdout == "library vendor\n"
    assert "imports a different library (" in stderr
    assert ("restarts without preloaded modules" in stderr) == (not before)


def test_sys_path_entry_above_site_packages_does_not_hide_packages(
    launch: Launch, script: Script, library: dict[str, str], tmp_path: Path
) -> None:
    """An example is a virtual environment in the project's directory."""
    (tmp_path / "third_party").mkdir()
    script("value, prefix = 'third', {}", "third_party/library.py")
    folder = "os.path.join(sys.path[0], 'third_party')"
    path = script(f"import os, sys\nsys.path.insert(1, {folder})\n{SAYS}")
    assert run(launch, library, path)[0] == "third {}\n"


def test_package_found_through_symbolic_link_is_the_same_package(
    launch: Launch, script: Script, library: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "lib64").symlink_to("site-packages")
    folder = str(tmp_path / "lib64")
    path = script(f"import sys\nsys.path.insert(0, {folder!r})\n{SAYS}")
    stdout, stderr = run(launch, library, path)
    assert stdout == "unset {}\n" and "imports a different" not in stderr


STUB = """
import os, sys, types
{before}
mine = types.ModuleType("library")
mine.value = "mine"
sys.modules["library"] = mine
import user
print(user.value, sys.modules["library"] is mine, flush=True)
"""


@pytest.mark.parametrize("before", ["", 'os.mkdir("once")'])
def test_module_that_script_puts_into_sys_modules_is_kept(
    launch: Launch, script: Script, library: dict[str, str], before: str
) -> None:
    """If a script can be restarted, other modules also use the script's own module."""
    script("import library\nvalue = library.value", "site-packages/user.py")
    path = script(STUB.format(before=before))
    result = launch("run", "--preload=user", "-v", path, **library)
    assert "workers start with preloaded modules" in result.stderr
    assert result.stdout == ("unset True\n" if before else "mine True\n")
    assert "puts its own library into sys.modules" in result.stderr
