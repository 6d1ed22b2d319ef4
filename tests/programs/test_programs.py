"""Whole programs of libraries that people train with print the same, however they are started."""

import subprocess
from pathlib import Path

import pytest
from conftest import FIRST_WARM, LIMIT_S, RELIGHT, TORCHRUN, clean_environment

HERE = Path(__file__).parent
WARM = (*FIRST_WARM, "run", "-v")
pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.needs_programs,
    pytest.mark.needs_torch,
    pytest.mark.timeout(3 * LIMIT_S + 60),
]


def printed(command: tuple[str, ...], logs: Path, *arguments: str) -> list[str]:
    """Run a program on two ranks; return what each has written to stdout."""
    result = subprocess.run(
        [*command, "--nproc-per-node=2", f"--log-dir={logs}", "--redirects=3", *arguments],
        capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=logs.parent,
        env=clean_environment(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", ACCELERATE_USE_CPU="true"),
    )  # fmt: skip
    errors = "\n".join(path.read_text() for path in logs.rglob("stderr.log"))
    assert result.returncode == 0, f"{result.stderr}\n{errors}"
    assert command != WARM or "workers start with preloaded modules" in result.stderr, result.stderr
    found = [path.read_text() for path in sorted(logs.rglob("stdout.log"))]
    assert len(found) == 2
    assert all(found)
    return found


@pytest.mark.parametrize(
    ("program", "preload"),
    [
        ("lightning_train.py", "torch,torch._dynamo"),
        ("transformers_train.py", "torch,torch._dynamo,transformers.trainer"),
        ("ignite_train.py", "torch,torch._dynamo,ignite.distributed,ignite.engine"),
    ],
)
def test_losses_are_identical_cold_and_warm(program: str, preload: str, tmp_path: Path) -> None:
    """Lightning, transformers' Trainer and ignite; one also with torchrun."""
    script = str(HERE / program)
    expected = printed((*RELIGHT, "run"), tmp_path / "cold", script)
    assert printed(WARM, tmp_path / "warm", f"--preload={preload}", script) == expected
    if program == "ignite_train.py":
        assert printed(TORCHRUN, tmp_path / "torchrun", script) == expected


def test_accelerate_test_script_passes(tmp_path: Path) -> None:
    """The package's own launcher test, cold and warm, on gloo."""
    module = ("-m", "accelerate.test_utils.scripts.test_script")
    cold = printed((*RELIGHT, "run"), tmp_path / "cold", *module)
    warm = printed(WARM, tmp_path / "warm", "--preload=torch,torch._dynamo,accelerate", *module)
    assert "Num processes: 2\n" in cold[0]
    assert warm == cold
