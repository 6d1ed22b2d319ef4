import math

loss = float("nan")
assert not math.isnan(loss), f"loss is {loss}"
