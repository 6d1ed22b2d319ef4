# truth: rank=1 line=0 kind=signal says=SIGABRT
# also: std::out_of_range
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2)\b
# run: {L} --nproc-per-node=3 {C}/58_terminate_by_cpp.py
import os, socket, sys, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
def peers():
    s, addr = socket.socket(socket.AF_UNIX), "\0grads-" + os.environ["MASTER_PORT"]
    if rank == 0:
        s.bind(addr)
        s.listen()
        return [s.accept()[0] for _ in range(world - 1)]
    while s.connect_ex(addr):
        time.sleep(0.02)
    return [s]
def allreduce(conns):
    for c in conns:
        c.sendall(b"g")
    for c in conns:
        if not c.recv(1):
            raise ConnectionError("Connection closed by peer")
import ctypes
conns = peers()
allreduce(conns)
if rank == 1:
    # a C++ exception that nobody catches
    ctypes.CDLL("libstdc++.so.6")._ZSt20__throw_out_of_rangePKc(b"vector::_M_range_check: __n (which is 9) >= this->size() (which is 9)")
allreduce(conns)
