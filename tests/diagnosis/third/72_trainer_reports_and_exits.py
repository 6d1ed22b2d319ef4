# truth: rank=1 line=18 kind=exception says=CUDA is not available, the recipe asks for 8 GPUs
# run: {L} --nproc-per-node=2 {C}/72_trainer_reports_and_exits.py
import os, sys, time
rank = int(os.environ["RANK"])
class Trainer:
    """As frameworks do it: print the error prettily and leave with a code."""
    def fit(self):
        try:
            self.setup()
        except Exception:
            import traceback
            print("-" * 60, file=sys.stderr)
            traceback.print_exc()
            print("-" * 60, file=sys.stderr)
            print("Trainer.fit stopped: see the error above", file=sys.stderr)
            sys.exit(1)
    def setup(self):
        raise RuntimeError("CUDA is not available, the recipe asks for 8 GPUs")
if rank == 1:
    time.sleep(0.5)
    Trainer().fit()
time.sleep(300)
