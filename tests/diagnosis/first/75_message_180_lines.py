# truth: rank=all line=4 kind=exception says=checkpoint does not fit
# run: {L} --nproc-per-node=2 {C}/75_message_180_lines.py
names = [f"layers.{i}.weight" for i in range(180)]
raise ValueError("checkpoint does not fit:\n" + "\n".join(f"size mismatch for {n}" for n in names))
# also: layers.0.weight
