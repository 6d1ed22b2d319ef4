# truth: rank=1 line=8 kind=exception says=ZeroDivisionError
# run: {L} --nproc-per-node=2 {C}/21_wrapped_twice.py
import os, sys, time
rank = int(os.environ["RANK"])
class TrainerError(Exception): ...
class JobError(Exception): ...
def perplexity(tokens):
    return 100 / tokens
def evaluate():
    try:
        perplexity(0)
    except ArithmeticError as e:
        raise TrainerError("evaluation failed at step 500") from e
if rank == 1:
    time.sleep(0.5)
    try:
        evaluate()
    except TrainerError as e:
        raise JobError("job 12 failed") from e
time.sleep(300)
