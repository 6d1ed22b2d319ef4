# truth: rank=0 line=0 kind=exception says=Exception in thread param-server: KeyError: 'momentum'
# also: rank 1 raised EOFError
# never: no other rank
# run: {L} --nproc-per-node=2 {C}/172_server_thread_dies.py
import threading
import time
from multiprocessing.connection import Client, Listener

import torch
import torch.distributed as dist


def serve(listener, table):
    with listener.accept() as conn:
        while True:
            msg = conn.recv()
            if msg["op"] == "push":
                table[msg["key"]] = msg["value"]
                conn.send("ok")
            else:
                value = table[msg["key"]]
                conn.send(value)


def start_param_server():
    listener = Listener(("127.0.0.1", 0))
    table = {"weights": [0.0] * 4, "lr": 0.1}
    threading.Thread(target=serve, args=(listener, table), name="param-server", daemon=True).start()
    return listener.address


def pull(conn, key):
    conn.send({"op": "pull", "key": key})
    try:
        return conn.recv()
    except EOFError:
        time.sleep(0.5)  # let the server write its log
        raise


def run_worker(address):
    conn = Client(tuple(address))
    weights = torch.tensor(pull(conn, "weights"))
    lr = pull(conn, "lr")
    for step in range(3):
        weights -= lr * torch.ones(4)
        conn.send({"op": "push", "key": "weights", "value": weights.tolist()})
        conn.recv()
        time.sleep(0.3)
    momentum = pull(conn, "momentum")
    print("momentum", momentum)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    box = [start_param_server() if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    if rank == 1:
        run_worker(box[0])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
