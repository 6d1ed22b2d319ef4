# truth: rank=2 line=47 kind=exception says=TrainingAborted
# also: caused by zlib\.error: Error -3
# run: {L} --nproc-per-node=3 {C}/171_chain_of_four.py
import time
import zlib
import torch
import torch.distributed as dist


class BlobError(Exception): ...


class DatasetError(Exception): ...


class TrainingAborted(Exception): ...


def unpack(blob):
    return zlib.decompress(blob)


def read_blob(key, blob):
    try:
        return unpack(blob)
    except zlib.error as e:
        raise BlobError(f"blob {key} ({len(blob)} bytes)") from e


def get_item(rank, i):
    blob = zlib.compress(bytes([i] * 32))
    if (rank, i) == (2, 6):
        blob = b"<html>403 Forbidden</html>"
    try:
        return torch.tensor(list(read_blob(f"s3/{rank}/{i}", blob)), dtype=torch.float32)
    except BlobError as e:
        raise DatasetError(f"item {i} not readable") from e


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(10):
        try:
            x = get_item(rank, step)
        except DatasetError as e:
            raise TrainingAborted(f"rank {rank} stops at step {step}") from e
        dist.all_reduce(x)
        time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
