# truth: rank=0 line=15 kind=exception says=KeyError: 'warmup_steps'
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:1|2)\b
# run: {L} --nproc-per-node=3 {C}/07_keyerror_peers_atexit_raise.py
import atexit, os, signal, sys, time
rank = int(os.environ["RANK"])
config = {"lr": 1e-3, "steps": 100}
class Writer:
    def close(self):
        raise RuntimeError("event file is closed: cannot write the summary")
if rank != 0:
    atexit.register(Writer().close)
signal.signal(signal.SIGTERM, lambda *a: sys.exit(143))
time.sleep(0.5)
def lr_at(step):
    return config["lr"] * step / config["warmup_steps"]
if rank == 0:
    lr_at(1)
time.sleep(60)
