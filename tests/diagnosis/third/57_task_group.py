# truth: rank=1 line=8 kind=exception says=KeyError: 'reward'
# run: {L} --nproc-per-node=2 {C}/57_task_group.py
import os, sys, time
rank = int(os.environ["RANK"])
import asyncio
async def rollout(i):
    await asyncio.sleep(0.5)
    return {"action": i}["reward"]
async def main():
    async with asyncio.TaskGroup() as group:
        for i in range(3):
            group.create_task(rollout(i))
if rank == 1:
    asyncio.run(main())
time.sleep(300)
