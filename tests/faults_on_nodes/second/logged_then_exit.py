import logging
import subprocess
import sys

import torch
import torch.distributed as dist

log = logging.getLogger("train")
logging.basicConfig(level=logging.INFO)


def unpack(archive):
    log.info("unpacking %s", archive)
    subprocess.run(["tar", "xf", archive], check=True, capture_output=True)


def main():
    dist.init_process_group("gloo")
    try:
        if dist.get_rank() == 0:
            unpack("/data/imagenet/train-00.tar")
        dist.barrier()
        print("training")
    except Exception:
        log.exception("preparing the data failed")
        sys.exit(3)
    dist.destroy_process_group()


main()
