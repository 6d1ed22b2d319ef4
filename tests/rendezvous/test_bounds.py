"""Extremely large settings, and a job's messages about its rendezvous."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Launch

from relight.base.errors import UsageError
from relight.base.values import MAX_SECONDS
from relight.flags.rdzv_conf import parse

pytestmark = pytest.mark.forked


@pytest.mark.parametrize(
    "text",
    [
        "join_timeout=1e300",
        "last_call_timeout=2000001",
        "keep_alive_interval=1e308",
        "keep_alive_max_attempt=1e308",
        "keep_alive_max_attempt=1000001",
        "lease_ttl=1e9",
    ],
)
def test_duration_too_large_for_any_clock_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--rdzv-conf: {text}: expected")):
        parse((tuple(text.split("=")),), "file")


def test_product_of_interval_and_attempts_is_limited() -> None:
    pairs = (("keep_alive_interval", f"{MAX_SECONDS:.0f}"), ("keep_alive_max_attempt", "2"))
    with pytest.raises(UsageError, match="must be at most 2000000 s"):
        parse(pairs, "file")


def run(launch: Launch, *flags: str) -> "subprocess.CompletedProcess[str]":
    return launch("run", "--nnodes=2", *flags, "--no-python", "true")


def test_static_rendezvous_rejects_a_path_as_endpoint(launch: Launch) -> None:
    """The static backend reports that it can't rendezvous in a directory."""
    result = run(launch, "--rdzv-endpoint=/tmp/x")
    assert result.returncode == 2
    assert "static rendezvous requires HOST:PORT" in result.stderr


def test_job_without_id_gets_note_about_other_jobs(launch: Launch, tmp_path: Path) -> None:
    """The note explains that jobs without an id count as one job, and what to check if no other
    node arrives.
    """
    flags = ("--rdzv-backend=file", f"--rdzv-endpoint={tmp_path}/meet")
    result = run(launch, *flags, "--rdzv-conf=join_timeout=1")
    assert result.returncode == 3
    assert f"no --rdzv-id is set: all jobs at file {tmp_path}/meet without an id" in result.stderr
    assert f"hint: check that file {tmp_path}" in result.stderr


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--timeout=1e300"], "at most 2000000"),
        (["--rdzv-backend=nope", "--rdzv-endpoint=/x", "--nnodes=2"], "nope is not one of"),
        (["nosuchscript.py"], "no such file: nosuchscript.py"),
    ],
)
def test_doctor_rejects_the_same_settings_as_run(
    launch: Callable[..., object], argv: list[str], says: str
) -> None:
    result = launch("doctor", *argv)
    assert result.returncode == 2
    assert says in result.stderr
