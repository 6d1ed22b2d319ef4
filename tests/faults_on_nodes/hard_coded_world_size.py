import os

assert int(os.environ["WORLD_SIZE"]) == 8, "this recipe needs 8 GPUs"
