# truth: rank=1 line=29 kind=exception says=DistNetworkError: The client socket has timed out
# also: the process group uses another store
# never: worker-store|no rank appears to have failed
# run: {L} --nproc-per-node=3 {C}/175_other_store_on_wrong_port.py
import socket
from datetime import timedelta
import torch
import torch.distributed as dist


def reserve_port():
    s = socket.socket()
    s.bind(("127.0.0.1", 0))  # bound, not listening
    return s, s.getsockname()[1]


class MetricStore:
    """A key/value store beside the process group, for live plots."""

    def __init__(self, rank):
        ports = [0, 0]
        if rank == 0:
            self.store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
            self.reserved, second = reserve_port()
            ports = [self.store.port, second]
        dist.broadcast_object_list(ports, src=0)
        if rank != 0:
            port = ports[rank % 2]
            self.store = dist.TCPStore(
                "127.0.0.1", port, None, False, timeout=timedelta(seconds=3), wait_for_workers=False
            )

    def put(self, name, value):
        self.store.set(name, f"{value:.6f}")


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    metrics = MetricStore(rank)
    dist.barrier()
    model = torch.nn.Linear(5, 1)
    for step in range(6):
        loss = model(torch.randn(4, 5)).pow(2).mean()
        model.zero_grad()
        loss.backward()
        dist.all_reduce(model.weight.grad)
        metrics.put(f"loss/{rank}", loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
