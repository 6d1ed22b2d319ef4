"""--hang-timeout=auto in an hour-long job: no false alarm, and then a real hang is noticed."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import RELIGHT, clean_environment

from relight.base.errors import EXIT_HUNG

SCRIPT = '''
"""Two ranks without torch. Argument: how many seconds a second of the hour takes."""
import os, socket, sys, time
from relight import worker

SCALE = float(sys.argv[1])
rank = int(os.environ["RANK"])
step = 0

def connect():
    """Return a connection between the two ranks."""
    if rank == 0:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("ranks.tmp")
            listener.listen()
            os.rename("ranks.tmp", "ranks")
            return listener.accept()[0]
    while not os.path.exists("ranks"):
        time.sleep(0.1)
    peer = socket.socket(socket.AF_UNIX)
    peer.connect("ranks")
    return peer

def barrier():
    peer.sendall(b"x")
    if not peer.recv(1):
        sys.exit("the other rank is gone")

def until(seconds, every_s=1.0):
    """Yield for this many seconds, with a pause after each."""
    end = time.monotonic() + seconds * SCALE
    while time.monotonic() < end:
        yield
        time.sleep(every_s)

def compute(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1000))

def begin(phase, seconds):
    barrier()
    if rank == 0:
        print(f"{time.strftime('%X')} {phase}: {seconds} s", flush=True)

def train(seconds):
    """A step a second, a line every ten."""
    global step
    begin("training", seconds)
    for _ in until(seconds):
        step += 1
        compute(0.05)
        worker.progress(step)
        if rank == 0 and step % 10 == 0:
            print("step", step, flush=True)

def checkpoint(seconds):
    """Rank 0 writes slowly, and waits for the disk; the other rank waits for it."""
    begin("checkpoint", seconds)
    if rank == 0:
        with open("checkpoint", "wb", buffering=0) as file:
            for _ in until(seconds):
                file.seek(0)
                file.write(bytes(65536))
                os.fsync(file.fileno())

def compile_model(seconds):
    """Both ranks compute, and print nothing."""
    begin("compilation", seconds)
    for _ in until(seconds, every_s=0.75):
        compute(0.2)

def evaluate(seconds):
    """Rank 0 computes, and prints every 90 s; the other rank waits for it."""
    begin("evaluation", seconds)
    if rank == 0:
        for nth, _ in enumerate(until(seconds)):
            compute(0.1)
            if nth % 90 == 89:
                print("evaluated", nth, flush=True)

def wait_for_files(seconds):
    """Nothing at all, as on a file system that does not answer."""
    begin("wait for a file system", seconds)
    time.sleep(seconds * SCALE)

peer = connect()
wait_for_files(28)
train(300)
checkpoint(480)
train(240)
compile_model(780)
train(240)
evaluate(720)
wait_for_files(28)
train(240)
checkpoint(360)
train(184)
begin("a hang", 0)
if rank == 1:
    time.sleep(100000)
barrier()
'''


@pytest.mark.long
@pytest.mark.timeout(5400)
def test_automatic_hang_timeout_tolerates_long_phases_but_detects_hang(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    began = time.monotonic()
    done = subprocess.run(
        [*RELIGHT, "run", "--nproc-per-node=2", "--hang-timeout=auto", str(script), "1"],
        capture_output=True, text=True, cwd=tmp_path, env=clean_environment(), check=False,
    )  # fmt: skip
    minutes = (time.monotonic() - began) / 60
    sys.stdout.write(f"{minutes:.1f} min\n{done.stdout}\n{done.stderr}")
    assert done.returncode == EXIT_HUNG, done.stderr
    assert "a hang: 0 s" in done.stdout, "stopped before its hour was over"
    pauses = re.findall(r"no rank has made progress for (\d+) min", done.stderr)
    assert pauses == ["5"], done.stderr
    assert minutes > 60
