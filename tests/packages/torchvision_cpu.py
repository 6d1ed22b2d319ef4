"""Lets torchvision be imported next to a torch without CUDA.

The wheel from the package index only has operators for CUDA, and its Python modules need two of
them to be declared.
"""

import os
from importlib.util import find_spec
from pathlib import Path

SIGNATURE = "(Tensor boxes, Tensor scores, float threshold) -> Tensor"
LINES = [f'torch.library.define("torchvision::{n}", "{SIGNATURE}")' for n in ("nms", "qnms")]
MARK = "  # without CUDA\n"


def main() -> None:
    """Declare the operators once."""
    spec = find_spec("torchvision")
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin).with_name("extension.py")
    text = path.read_text()
    begin = 'if _load_library("_C"):'
    if MARK in text or begin not in text:
        return
    declared = "".join(line + MARK for line in LINES)
    other = path.with_suffix(".new")
    other.write_text(text.replace(begin, f"{declared}\n{begin}"))
    os.replace(other, path)  # the file may be shared with an installer's cache


if __name__ == "__main__":
    main()
