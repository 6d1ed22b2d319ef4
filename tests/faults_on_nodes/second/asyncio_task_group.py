import asyncio
import os

import torch

rank = int(os.environ["RANK"])


async def fetch(i):
    await asyncio.sleep(0.01 * i)
    if rank == 3 and i == 5:
        raise ConnectionResetError(f"shard {i}: connection reset by object store")
    return torch.full((4,), float(i))


async def fetch_all(n):
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(fetch(i)) for i in range(n)]
    return torch.stack([t.result() for t in tasks])


data = asyncio.run(fetch_all(8))
print("rank", rank, "fetched", tuple(data.shape))
