# truth: rank=all line=8 kind=exception says=ModuleNotFoundError: No module named 'flash_attn_4'
# run: {L} --nproc-per-node=3 {C}/93_module_not_found.py
import os
try:
    import flash_attn_5
except ImportError:
    print("no flash_attn_5, using 4")
import flash_attn_4
