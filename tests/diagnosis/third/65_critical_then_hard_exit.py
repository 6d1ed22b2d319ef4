# truth: rank=1 line=0 kind=exit says=validation loss is nan at step 900
# run: {L} --nproc-per-node=2 {C}/65_critical_then_hard_exit.py
# also: 17
import os, sys, time
rank = int(os.environ["RANK"])
import logging
logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
if rank == 1:
    time.sleep(0.5)
    logging.critical("validation loss is nan at step 900")
    for i in range(8):
        logging.warning("closing writer %d", i)
    os._exit(17)
time.sleep(300)
