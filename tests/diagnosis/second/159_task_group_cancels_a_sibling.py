# truth: rank=1 line=10 kind=exception says=ValueError: sample 17 has negative length -7
# also: ExceptionGroup: unhandled errors in a TaskGroup
# never: sub-exceptions\): (?:asyncio\.exceptions\.)?(?:CancelledError|ConnectionError)
# run: {L} --nproc-per-node=2 {C}/159_task_group_cancels_a_sibling.py
import asyncio, os
rank = int(os.environ["RANK"])
async def fetch(i):
    await asyncio.sleep(0.05)
    if 10 - i < 0 and rank == 1 and i == 17:
        raise ValueError(f"sample {i} has negative length {10 - i}")
async def heartbeat():
    try:
        while True:
            await asyncio.sleep(0.2)
    finally:
        raise ConnectionError("heartbeat: could not deregister from tracker")
async def main():
    async with asyncio.TaskGroup() as tg:
        tg.create_task(heartbeat())
        for i in range(1000):
            await fetch(i)
asyncio.run(main())
