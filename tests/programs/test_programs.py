"""Complete programs that use training libraries print the same output, however they are started."""

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
    """Run a program on two ranks; return what each rank wrote to stdout."""
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
def test_losses_are_identical_for_cold_and_warm_starts(
    program: str, preload: str, tmp_path: Path
) -> None:
    """The programs use Lightning, transformers' Trainer, and ignite; one also runs on torchrun."""
    script = str(HERE / program)
    expected = printed((*RELIGHT, "run"), tmp_path / "cold", script)
    assert printed(WARM, tmp_path / "warm", f"--preload={preload}", script) == expected
    if program == "ignite_train.py":
        assert printed(TORCHRUN, tmp_path / "torchrun", script) == expected


def test_script_that_accelerate_ships_for_testing_passes(tmp_path: Path) -> None:
    """The package's own launcher test passes cold and warm, with gloo."""
    module = ("-m", "accelerate.test_utils.scripts.test_script")
    cold = printed((*RELIGHT, "run"), tmp_path / "cold", *module)
    warm = printed(WARM, tmp_path / "warm", "--preload=torch,torch._dynamo,accelerate", *module)
    assert "Num processes: 2\n" in cold[0]
    assert warm == cold


LAUNCH_SCRIPT = """
import shlex, subprocess, sys
words = "torchrun --nnodes 1 --node_rank 0 --nproc_per_node 2 --master_addr 127.0.0.1 {} {}"
subprocess.run(shlex.split(words.format(sys.argv[1], "--stage sft")), check=True)
"""
RUN_TRAIN = """
set -e
NGPU=${NGPU:-"2"}
export LOG_RANK=${LOG_RANK:-0,1}
PYTORCH_ALLOC_CONF="expandable_segments:True" \\
torchrun --nproc_per_node=${NGPU} --rdzv_backend c10d --rdzv_endpoint="localhost:0" \\
--local-ranks-filter ${LOG_RANK} --role rank --tee 3 \\
-m parent --job.config_file debug.toml "$@"
"""
PARENT = """
import os
with open(f"/proc/{os.getppid()}/cmdline") as file:
    print("by relight:", "worker spawner" in file.read())
"""


@pytest.mark.parametrize(
    "command",
    [
        ("accelerate", "launch", "--multi_gpu", "--num_processes=2", "parent.py"),
        ("fabric", "run", "--accelerator=cpu", "--devices=2", "--strategy=ddp", "parent.py"),
        ("python", "launch.py", "parent.py"),
        ("bash", "run_train.sh", "--steps", "10"),
    ],
    ids=lambda command: command[0],
)
def test_launch_scripts_run_unchanged_under_relight_exec(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    """The scripts are `accelerate launch`, Lightning's `fabric run`, and ones that resemble
    LLaMA-Factory's launcher and torchtitan's run_train.sh.
    """
    for name, text in (("launch.py", LAUNCH_SCRIPT), ("run_train.sh", RUN_TRAIN),
                       ("parent.py", PARENT)):  # fmt: skip
        (tmp_path / name).write_text(text)
    import accelerate

    programs = str(Path(accelerate.__file__).parents[4] / "bin")
    done = subprocess.run(
        [*RELIGHT, "exec", *command], cwd=tmp_path, timeout=LIMIT_S, check=False,
        capture_output=True, text=True,
        env=clean_environment(PATH=f"{programs}:/usr/bin:/bin", OMP_NUM_THREADS="1"),
    )  # fmt: skip
    assert done.stdout.count("by relight: True") == 2, done.stderr
    assert done.returncode == 0
