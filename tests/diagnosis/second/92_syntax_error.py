# truth: rank=all line=6 kind=exception says=SyntaxError
# run: {L} --nproc-per-node=3 {C}/92_syntax_error.py
import os
config = {
    "lr": 1e-3,
    "steps": 100
    "warmup": 10,
}
print(os.environ["RANK"], config)
