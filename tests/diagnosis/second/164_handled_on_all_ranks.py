# truth: rank=1 line=36 kind=exception says=AssertionError: vocabulary has 96 entries
# never: mirror not reachable
# run: {L} --nproc-per-node=4 {C}/164_handled_on_all_ranks.py
import logging
import time
import urllib.error
import urllib.request

import torch
import torch.distributed as dist

logging.basicConfig(level=logging.INFO, format="%(asctime)s [%(levelname)s] %(message)s")
log = logging.getLogger(__name__)


def fetch_vocab():
    """Try the local mirror first and use the copy that ships with the code otherwise."""
    for attempt in range(3):
        try:
            with urllib.request.urlopen("http://127.0.0.1:9/vocab.txt", timeout=1) as r:
                return r.read().decode().split()
        except (urllib.error.URLError, OSError):
            log.exception("attempt %d: mirror not reachable", attempt + 1)
            time.sleep(0.2)
    log.warning("falling back to the built-in vocabulary")
    return [f"tok{i}" for i in range(100)]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    vocab = fetch_vocab()
    if rank == 1:
        vocab = vocab[:-4]      # stale built-in copy on this host
    emb = torch.nn.Embedding(100, 16)
    assert len(vocab) == emb.num_embeddings, f"vocabulary has {len(vocab)} entries, embedding has {emb.num_embeddings}"
    n = torch.tensor([len(vocab)])
    dist.all_reduce(n)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
