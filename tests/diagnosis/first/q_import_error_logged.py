# truth: rank=all line=0 kind=exit says=config error: batch size 7 is not divisible by world size 2
# never: raised|probably
# run: {L} --nproc-per-node=2 {C}/q_import_error_logged.py
import logging, os, sys
try:
    import a_module_that_nobody_has
except ImportError:
    logging.warning("it is not installed, using torch's fused kernels", exc_info=True)
def check(batch, world):
    if batch % world: sys.exit(f"config error: batch size {batch} is not divisible by world size {world}")
check(7, int(os.environ["WORLD_SIZE"]))
