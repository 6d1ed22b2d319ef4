# truth: rank=1 line=0 kind=exception says=IncompleteReadError
# also: ^probably rank 0
import os, sys, time, socket, struct
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
def pair():
    addr = ("127.0.0.1", 20000 + int(os.environ["MASTER_PORT"]) % 9973)
    s = socket.socket()
    if rank == 0:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(addr); s.listen()
        return s.accept()[0]
    while s.connect_ex(addr):
        s.close(); time.sleep(0.02); s = socket.socket()
    return s
import asyncio
port = 20000 + int(os.environ["MASTER_PORT"]) % 9973
async def zero():
    done = asyncio.get_running_loop().create_future()
    async def serve(r, w):
        try:
            while True:
                await r.readexactly(4)
                w.write(b"pong"); await w.drain()
        except Exception as e: done.set_exception(e)
    async with await asyncio.start_server(serve, "127.0.0.1", port):
        await done
async def one():
    while True:
        try: r, w = await asyncio.open_connection("127.0.0.1", port); break
        except OSError: await asyncio.sleep(0.05)
    try:
        for n in range(20):
            w.write(b"ping"); await r.readexactly(4)
            if n == 5: raise ValueError("bad token")
    finally:
        w.close(); await w.wait_closed()
        await asyncio.sleep(1.0)
asyncio.run(zero() if rank == 0 else one())
