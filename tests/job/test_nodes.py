"""`-j` and `--name`: the forms accepted by TorchX, and invalid values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.base.errors import UsageError
from relight.base.values import Nodes
from relight.job.components.nodes import (
    JobSize,
    Name,
    parse_job_size,
    parse_name,
    parse_size,
    role_name,
)


@pytest.mark.parametrize(
    ("j", "expected", "text"),
    [
        ("2", JobSize(Nodes(1, 1), 2), "1"),
        ("1x2", JobSize(Nodes(1, 1), 2), "1"),
        ("4x8", JobSize(Nodes(4, 4), 8), "4"),
        ("2:4x8", JobSize(Nodes(2, 4), 8), "2:4"),
        ("4:4x1", JobSize(Nodes(4, 4), 1), "4"),
        ("01x02", JobSize(Nodes(1, 1), 2), "1"),
        ("1000x16", JobSize(Nodes(1000, 1000), 16), "1000"),
    ],
)
def test_job_size_accepts_every_torchx_form(j: str, expected: JobSize, text: str) -> None:
    assert parse_size(j) == expected
    assert str(expected.nodes) == text


@pytest.mark.parametrize(
    ("j", "message"),
    [
        *((j, "expected NODESxWORKERS") for j in (
            "", "x", "2x", "x2", "1x2x3", "a", "2xb", "-1x2", "1x-2", "1.5x2", "1 x2", "+1x2",
            "2:x1", ":2x1", "1:2:3x1", "1:2", "1X2", "٣x2", "²x2", "1_0x2", "2x2:4",
        )),
        ("0x1", "there must be at least 1 node"),
        ("0:2x1", "there must be at least 1 node"),
        ("2x0", "there must be at least 1 worker on a node"),
        ("0", "there must be at least 1 worker on a node"),
        ("4:2x1", "the minimum, 4, is above the maximum, 2"),
    ],
)  # fmt: skip
def test_impossible_job_size_is_rejected(j: str, message: str) -> None:
    """It is malformed, or doesn't describe a job."""
    with pytest.raises(UsageError) as caught:
        parse_size(j)
    assert caught.value.message.startswith("-j ")
    assert message in caught.value.message


@given(st.integers(1, 999), st.integers(0, 999), st.integers(1, 99))
def test_job_size_round_trips_through_string(least: int, more: int, workers: int) -> None:
    size = parse_size(f"{least}:{least + more}x{workers}")
    assert size == JobSize(Nodes(least, least + more), workers)
    assert parse_size(f"{size.nodes}x{workers}") == size


@given(st.text(alphabet="0123456789x: -", max_size=9))
def test_any_text_gives_a_job_size_or_a_usage_error(j: str) -> None:
    try:
        size = parse_size(j)
    except UsageError as error:
        assert "\n" not in error.message
    else:
        assert 1 <= size.nodes.min_nodes <= size.nodes.max_nodes
        assert size.workers >= 1


@pytest.mark.parametrize(
    ("h", "j", "expected"),
    [
        ("aws_p4d.24xlarge", "2", JobSize(Nodes(2, 2), 8)),
        ("aws_p4d.24xlarge", "2x4", JobSize(Nodes(2, 2), 4)),
        ("gpu.small", "3", JobSize(Nodes(3, 3), 1)),
        ("aws_trn1.32xlarge", "2x16", JobSize(Nodes(2, 2), 16)),
        ("cpu.small", "1x2", JobSize(Nodes(1, 1), 2)),
    ],
)
def test_worker_count_defaults_to_gpu_count_of_resource(h: str, j: str, expected: JobSize) -> None:
    """`-j N` counts nodes, and the resource determines the workers on each."""
    assert parse_job_size(h, j) == expected


@pytest.mark.parametrize(
    ("h", "j", "message"),
    [
        (
            "aws_trn1.32xlarge",
            "2",
            "-j 2: aws_trn1.32xlarge has no GPUs, so the number of workers is unknown",
        ),
        ("NULL", "2", "has no GPU"),
        ("gpu.small", "0", "at least 1 node"),
        ("gpu.small", "1x0", "at least 1 worker"),
        ("gpu.small", "1x1x1", "expected NODESxWORKERS or NODES"),
        ("gpu.small", "2:4x1", "expected NODESxWORKERS or NODES"),
        ("gpu.small", "", "expected NODESxWORKERS or NODES"),
        ("gpu.smal", "1", "unknown named resource: gpu.smal"),
    ],
)
def test_resource_without_gpus_requires_a_worker_count(h: str, j: str, message: str) -> None:
    """Malformed sizes are rejected too."""
    with pytest.raises(UsageError) as caught:
        parse_job_size(h, j)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("name", "experiment", "run"),
    [
        ("/", "default-experiment", "my.train"),
        ("exp/run", "exp", "run"),
        ("exp/", "exp", "my.train"),
        ("/run", "default-experiment", "run"),
        ("run", "default-experiment", "run"),
        ("", "default-experiment", "my.train"),
        ("//", "default-experiment", "/"),
        ("a/b/c", "a", "b/c"),
    ],
)
def test_job_name_is_split_at_first_slash(name: str, experiment: str, run: str) -> None:
    """The form is EXPERIMENT/RUN. A missing part is taken from the script."""
    assert parse_name(name, "dir/my.train.py", None) == Name(experiment, run)


def test_default_name_is_last_part_of_module_path() -> None:
    assert parse_name("foo/", None, "a.b.c") == Name("foo", "c")
    assert (role_name(None, "c"), role_name("c", None)) == ("c", "c")


def test_role_name_has_no_spaces() -> None:
    """Schedulers use it in directories, and Slurm refuses it otherwise."""
    assert role_name("my dir/my train.v2.py", None) == "my-train.v2"


@pytest.mark.parametrize(
    ("script", "m", "what"),
    [(None, None, "got neither"), ("", "", "got neither"), ("a.py", "b", "got both")],
)
def test_exactly_one_of_script_and_module_is_required(
    script: str | None, m: str | None, what: str
) -> None:
    with pytest.raises(UsageError, match=f"exactly one of --script and -m is required, {what}"):
        parse_name("/", script, m)
