"""The layers of docs/ARCHITECTURE.md: imports go to the left only."""

import ast
from pathlib import Path

import pytest

import relight

ROOT = Path(relight.__file__).parent

# Each layer may import itself and what stands before it.
LAYERS = (
    ("env", "errors", "typed"),
    ("values",),
    ("events", "spec"),
    ("core",),
    ("host", "rendezvous", "schedulers", "job", "status", "worker", "testing"),
    ("postmortem",),
    ("doctor", "function", "function_hosts", "function_results"),
    ("group",),
    ("coordinator",),
    ("link",),
    ("agent",),
    ("cli", "__main__"),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
PURE_MAY_IMPORT = {
    "collections",
    "enum",
    "functools",
    "itertools",
    "math",
    "json",
    "struct",
    "re",
    "signal",
    "string",
    "types",
    "hashlib",
    "hmac",
}


def modules() -> list[Path]:
    return sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module == "relight":
                found.update(f"relight.{alias.name}" for alias in node.names)
    return found


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_to_the_left(path: Path) -> None:
    """No module imports one of a layer to its right."""
    own = layer_of(path)
    assert own in RANK, f"{own} is in no layer"
    for name in imports(path):
        if name.startswith("relight.") and name.split(".")[1] in RANK:
            other = name.split(".")[1]
            assert RANK[other] <= RANK[own], f"{path.name} ({own}) imports {name}"


@pytest.mark.parametrize("path", sorted((ROOT / "core").glob("*.py")), ids=lambda p: p.name)
def test_the_core_is_pure(path: Path) -> None:
    """core/ imports nothing that touches the machine, the clock or chance."""
    for name in imports(path):
        top = name.split(".")[0]
        assert top == "relight" or top in PURE_MAY_IMPORT, f"{path.name} imports {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_launcher_never_imports_torch(path: Path) -> None:
    """Neither the launcher nor what workers import from it needs torch."""
    assert not {name for name in imports(path) if name.split(".")[0] == "torch"}


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_only_env_reads_the_environment(path: Path) -> None:
    """os.environ and os.getenv stand in env.py alone; what runs inside workers has its own."""
    if path == ROOT / "env.py" or layer_of(path) == "worker":
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            assert node.attr not in ("environ", "getenv"), f"{path.name}:{node.lineno}"
