# truth: rank=all line=8 kind=exception says=Error(s) in loading state_dict for Net
# run: {L} --nproc-per-node=3 {C}/20_state_dict_mismatch_imitated.py
import os, time
def load_state_dict():
    missing = [f'Missing key(s) in state_dict: "layers.{i}.attention.wq.weight". ' for i in range(200)]
    sizes = [f"size mismatch for layers.{i}.ffn.w1.weight: copying a param with shape torch.Size([4096, {i}]) "
             f"from checkpoint, the shape in current model is torch.Size([1024, {i}])." for i in range(200)]
    raise RuntimeError("Error(s) in loading state_dict for Net:\n\t" + "\n\t".join(missing + sizes))
time.sleep(0.3)
load_state_dict()
