# truth: rank=1 line=6 kind=exit says=training failed: ValueError: lr must be > 0
# never: raised
# run: {L} --nproc-per-node=2 {C}/q_logged_then_exit.py
import logging, os, sys, time
def train():
    raise ValueError("lr must be > 0")
def main():
    try:
        train()
    except Exception:
        logging.exception("training failed")
        sys.exit(1)
if os.environ["RANK"] == "1":
    main()
time.sleep(60)
