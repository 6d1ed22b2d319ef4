import asyncio
import os
import time

if os.environ["RANK"] != "1":
    time.sleep(60)


async def bad():
    raise KeyError("k")


async def main():
    async with asyncio.TaskGroup() as group:
        group.create_task(bad())


asyncio.run(main())
