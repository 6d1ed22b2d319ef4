# truth: rank=1 line=11 kind=exception says=ConnectionRefusedError
# run: {L} --nproc-per-node=2 {C}/58_gather_connection_refused.py
# also: Connect call failed|refused
# never: (?i)gone or late
# never: lost (its|the) (peer|connection) (to|of) rank
import os, sys, time
rank = int(os.environ["RANK"])
import asyncio, socket
free = socket.socket(); free.bind(("127.0.0.1", 0)); port = free.getsockname()[1]; free.close()
async def reward():
    await asyncio.open_connection("127.0.0.1", port)
async def main():
    await asyncio.gather(asyncio.sleep(30), reward())
if rank == 1:
    time.sleep(0.5)
    asyncio.run(main())
time.sleep(300)
