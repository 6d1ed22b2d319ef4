# truth: rank=1 line=0 kind=exit says=Validation accuracy 0.1 is below the required 0.9: stop.
# never: because|due to
# run: {L} --nproc-per-node=2 {C}/q_error_line_of_all.py
import os, sys, time
print("ERROR: tensorboard plugin could not be loaded (ignored)", file=sys.stderr)
for step in range(12): print(f"step {step} loss 0.{step}", file=sys.stderr)
if os.environ["RANK"] == "1":
    time.sleep(0.5)
    print("Validation accuracy 0.1 is below the required 0.9: stop.", file=sys.stderr)
    sys.exit(1)
time.sleep(60)
