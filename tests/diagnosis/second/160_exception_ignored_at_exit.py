# truth: rank=0 line=0 kind=exit says=ERROR: 3 of 8 shards are empty
# never: (?m)^relight: .*Exception ignored
# run: {L} --nproc-per-node=2 {C}/160_exception_ignored_at_exit.py
import os, sys, time
class Reader:
    def __del__(self):
        self.process.kill()
reader = Reader()
if os.environ["RANK"] == "0":
    print("ERROR: 3 of 8 shards are empty", file=sys.stderr)
    sys.exit(4)
time.sleep(60)
