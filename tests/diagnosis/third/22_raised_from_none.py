# truth: rank=1 line=10 kind=exception says=ConfigError: 'optim.lr' must be a number, not 'high'
# run: {L} --nproc-per-node=2 {C}/22_raised_from_none.py
import os, sys, time
rank = int(os.environ["RANK"])
class ConfigError(Exception): ...
def number(key, text):
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"'{key}' must be a number, not '{text}'") from None
if rank == 1:
    time.sleep(0.5)
    number("optim.lr", "high")
time.sleep(300)
