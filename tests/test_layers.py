"""The layers in docs/ARCHITECTURE.md: imports only go to the left."""

import ast
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import relight
from relight.job import launcher_file

ROOT = Path(relight.__file__).parent

# Each layer may import itself and the layers before it.
ROOMS = (
    "base", "flags", "events", "core", "host", "processes", "output", "net", "rendezvous",
    "stacks", "health", "warm", "preload", "worker", "agent",
    "job", "sandbox", "schedulers", "runner", "tracker", "inspect", "doctor", "cli", "__main__",
    "api", "torch_launcher", "pytest_plugin",
)  # fmt: skip
LAUNCHER = ROOMS[: ROOMS.index("agent") + 1]
"""The layers that `relight run` needs, which don't depend on any others."""
RANK = {name: rank for rank, name in enumerate(ROOMS)}
CORE = ROOT / "core"
TOP = "relight"
"""Names higher layers, for users, and loads them on access."""
FACES = (TOP, "relight.events", "relight.job", "relight.runner", "relight.tracker")
"""The modules from which users import."""
RANK_OF_A_TEST = ROOT / "pytest_plugin" / "rank.py"
DRIVER_ON_RAY = ROOT / "schedulers" / "ray" / "driver.py"
"""Runs on a cluster where relight is not installed."""
SHARED_BY_SCHEDULERS = "relight.schedulers.processes"
PLUG_INS_MAY_IMPORT = (
    "relight.__version__", "relight.base.env", "relight.base.errors", "relight.base.text",
    "relight.job.app",
    "relight.job.launcher_file", "relight.job.macros", "relight.job.overlays",
    "relight.base.redaction", "relight.job.user",
    "relight.job.workspaces", "relight.schedulers.api", "relight.schedulers.failure_reason",
    "relight.schedulers.resource_checks", "relight.schedulers.uninterruptible",
)  # fmt: skip
"""What docs/clusters/your-own.md promises to schedulers from other packages."""
LIKE_PLUG_INS = ("kubernetes", "aws_batch", "ray")
PLUG_IN = Path(__file__).parent / "schedulers" / "plugin" / "relight_pool"
PURE_MAY_IMPORT = {
    "bisect",
    "collections",
    "enum",
    "functools",
    "heapq",
    "itertools",
    "math",
    "json",
    "struct",
    "re",
    "signal",
    "string",
    "types",
    "typing",
    "hashlib",
    "hmac",
}


@cache
def modules() -> list[Path]:
    return sorted(p for p in ROOT.rglob("*.py") if name_of(p) != TOP)


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


@cache
def file_of(name: str) -> Path | None:
    """Return the file of one of relight's modules."""
    path = ROOT.parent.joinpath(*name.split("."))
    files = (path / "__init__.py", path.with_suffix(".py"))
    return next((f for f in files if f.is_file() and f.is_relative_to(ROOT)), None)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> frozenset[str]:
    """Return the modules that a file imports anywhere, and `package.name` for names that are
    defined in a package itself.
    """
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{path.name}:{node.lineno} imports by position"
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            if node.module in FACES:
                found |= inside
            else:
                found |= {name if file_of(name) else node.module for name in inside}
    return frozenset(found)


def package_of(path: Path) -> str:
    """Return the folder that contains a module, or the module itself if it is in none."""
    return name_of(path) if path.parent == ROOT else name_of(path.parent / "__init__.py")


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_modules_in_layer_list_exist() -> None:
    assert not {name for name in RANK if not file_of(f"relight.{name}")}


def all_imports() -> Iterator[tuple[Path, str]]:
    """Return each module with each name that it imports."""
    return ((path, name) for path in modules() for name in imports(path))


def test_modules_import_only_from_allowed_layers() -> None:
    assert not {layer_of(path) for path in modules()} - RANK.keys(), "in no layer"
    for path, name in all_imports():
        own = layer_of(path)
        if name.startswith("relight.") and name.split(".")[1] in RANK:
            other = name.split(".")[1]
            assert RANK[other] <= RANK[own], f"{path} ({own}) imports {name}"


def test_internal_code_does_not_import_public_facades() -> None:
    """Code inside the package imports names from the modules that define them."""
    for path, name in all_imports():
        face, _, _ = name.rpartition(".")
        is_inside = face in FACES and not file_of(name) and name != "relight.__version__"
        assert name not in FACES[1:] and not is_inside, f"{path} imports {name}"


def circles(arrows: dict[str, set[str]]) -> list[str]:
    """Return the names from which arrows lead back to themselves."""

    def reached(start: str) -> set[str]:
        seen, left = set[str](), arrows.get(start, set())
        while left:
            seen |= left
            left = {further for each in left for further in arrows.get(each, ())} - seen
        return seen

    return sorted(name for name in arrows if name in reached(name))


def test_modules_have_no_import_cycles() -> None:
    """Imports inside functions and for type checking also count."""
    arrows: dict[str, set[str]] = {}
    for path, name in all_imports():
        if (file := file_of(name)) and name_of(file) != TOP:
            arrows.setdefault(name_of(path), set()).add(name_of(file))
    assert not circles(arrows)


def test_core_folders_have_no_import_cycles() -> None:
    arrows: dict[str, set[str]] = {}
    for path, name in all_imports():
        file = file_of(name)
        if file and CORE in path.parents and CORE in file.parents and path.parent != file.parent:
            arrows.setdefault(path.parent.name, set()).add(file.parent.name)
    assert not circles(arrows)


def test_launcher_is_self_contained() -> None:
    """The launcher imports no jobs, schedulers, commands on jobs, or tools."""
    for path, name in all_imports():
        if layer_of(path) in LAUNCHER and name.startswith("relight."):
            assert name.split(".")[1] in LAUNCHER, f"{path} imports {name}"


def test_launcher_file_contains_only_the_launcher() -> None:
    """The file also has the launcher's commands, and what starts a replica over SSH."""
    others = {path for path in launcher_file.modules() if path.split("/")[0] not in LAUNCHER}
    assert set(LAUNCHER) == launcher_file.ROOMS
    assert others == launcher_file.FOR_SSH | launcher_file.COMMANDS


@pytest.mark.parametrize("package", [TOP, "relight.job"])
def test_stub_lists_the_names_that_the_package_loads_on_access(package: str) -> None:
    found = import_module(package)
    stub = ast.parse(Path(str(found.__file__)).with_suffix(".pyi").read_text())
    listed = {
        alias.name: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom) and node.module != package
        for alias in node.names
    }
    assert listed == {
        name: f"{package}.{module}" for name, module in vars(found)["_FROM_MODULE"].items()
    }


def test_schedulers_do_not_import_each_other() -> None:
    """The registry loads schedulers by name. Code shared by several schedulers is in a folder that
    only schedulers may import.
    """
    for path, name in all_imports():
        own, file = package_of(path), file_of(name)
        package = package_of(file) if file else ""
        if package.startswith("relight.schedulers.") and package != own:
            assert package == SHARED_BY_SCHEDULERS, f"{path} imports {name}"
            assert own.startswith("relight.schedulers."), f"{path} imports {name}"


@pytest.mark.parametrize(
    "folder",
    [*(ROOT / "schedulers" / name for name in LIKE_PLUG_INS), PLUG_IN],
    ids=lambda folder: folder.name,
)
def test_schedulers_use_only_plugin_api(folder: Path) -> None:
    for path in folder.glob("*.py"):
        for name in imports(path):
            is_theirs = name.split(".")[0] != TOP or folder.name in name.split(".")
            is_of_users = name.rpartition(".")[0] == "relight.job" and not file_of(name)
            assert is_theirs or is_of_users or name in PLUG_INS_MAY_IMPORT, f"{path}: {name}"


def test_core_does_not_use_io_clock_or_randomness() -> None:
    for path, name in all_imports():
        if CORE in path.parents:
            top = name.split(".")[0]
            assert top == "relight" or top in PURE_MAY_IMPORT, f"{path} imports {name}"


def test_launcher_never_imports_torch() -> None:
    """Neither the launcher nor what workers import from it needs torch. The exceptions are a test's
    rank, which initializes the process group, and a script that shares its model.
    """
    found = {path for path, name in all_imports() if name.split(".")[0] == "torch"}
    assert found == {RANK_OF_A_TEST, ROOT / "worker" / "replicas.py"}


def test_only_env_module_reads_environment_variables() -> None:
    """Only env.py uses os.environ and os.getenv; code inside workers has its own access."""
    may = {ROOT / "base" / "env.py", RANK_OF_A_TEST, DRIVER_ON_RAY}
    may.update(path for path in modules() if layer_of(path) in ("preload", "worker"))
    for path in {*modules()} - may:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("environ", "getenv"), f"{path}:{node.lineno}"
