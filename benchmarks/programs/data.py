"""Creates small synthetic data that replaces what programs would download. It is run by the
programs' interpreter: `python data.py KIND DIRECTORY`.
"""

import os
import random
import sys
from pathlib import Path

_WORDS = ("the", "a", "model", "learns", "to", "read", "words", "that", "nobody", "has", "said")


def words(number: int) -> str:
    """Return this many pseudorandom words, which are the same in each run."""
    draw = random.Random(7)
    return " ".join(draw.choice(_WORDS) for _ in range(number))


def language(folder: Path) -> None:
    """Create the files for word_language_model."""
    for name in ("train.txt", "valid.txt", "test.txt"):
        (folder / name).write_text(words(20_000 if name == "train.txt" else 500))


def clip(folder: Path) -> None:
    """Add a tiny model to the configurations of open_clip."""
    import json

    vision = {"image_size": 32, "layers": 2, "width": 64, "patch_size": 8, "head_width": 32}
    words = {"context_length": 16, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2}
    model = {"embed_dim": 32, "vision_cfg": vision, "text_cfg": words}
    (folder / "tiny.json").write_text(json.dumps(model))


def tokens(folder: Path) -> None:
    """Create text for nanoGPT, encoded by character."""
    import pickle

    import numpy as np

    written = words(20_000)
    letters = sorted(set(written))
    index = {letter: place for place, letter in enumerate(letters)}
    encoded = np.array([index[letter] for letter in written], dtype=np.uint16)
    for name in ("train.bin", "val.bin"):
        encoded.tofile(folder / name)
    meta = {"vocab_size": len(letters), "stoi": index, "itos": dict(enumerate(letters))}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def mnist(folder: Path) -> None:
    """Create the files of torchvision's MNIST with random content."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    draw = random.Random(7)
    for name, count in (("train", 60_000), ("t10k", 200)):
        head = [(2051, count, 28, 28), (2049, count)]
        bodies = [draw.randbytes(count * 784), bytes(draw.randrange(10) for _ in range(count))]
        kinds = ("images-idx3", "labels-idx1")
        for numbers, body, kind in zip(head, bodies, kinds, strict=True):
            begin = b"".join(number.to_bytes(4, "big") for number in numbers)
            (raw / f"{name}-{kind}-ubyte").write_bytes(begin + body)


def images(folder: Path) -> None:
    """Create images in a directory per class, and the same images in one directory as
    CLASS_NUMBER.jpg.
    """
    from PIL import Image

    draw = random.Random(7)
    for split in ("train", "val", "all"):
        for kind in ("cat", "dog"):
            for number in range(100 if split != "val" else 4):
                place = folder / split if split == "all" else folder / split / kind
                place.mkdir(parents=True, exist_ok=True)
                picture = Image.frombytes("RGB", (64, 64), draw.randbytes(64 * 64 * 3))
                picture.save(place / f"{kind}_{number}.jpg")


def glue(folder: Path) -> None:
    """Create a tiny BERT, a data set and a metric with the names that examples load from the
    hub.
    """
    import csv

    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertForSequenceClassification

    model = folder / "bert-base-cased"
    model.mkdir()
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS]
    (model / "vocab.txt").write_text("\n".join(vocabulary))
    BertWordPieceTokenizer(str(model / "vocab.txt")).save(str(model / "tokenizer.json"))
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=len(vocabulary), intermediate_size=32, **size)
    BertForSequenceClassification(config).save_pretrained(model)
    data = folder / "nyu-mll" / "glue"
    data.mkdir(parents=True)
    for split, count in (("train", 4000), ("validation", 64)):
        with open(data / f"{split}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["sentence1", "sentence2", "label", "idx"])
            writer.writerows([words(4 + i % 9), words(3 + i % 7), i % 2, i] for i in range(count))
    files = "".join(
        f"  - split: {split}\n    path: {split}.csv\n" for split in ("train", "validation")
    )
    head = f"---\nconfigs:\n- config_name: mrpc\n  data_files:\n{files}---\n"
    (data / "README.md").write_text(head)
    metric = folder / "glue"
    metric.mkdir()
    (metric / "glue.py").write_text(
        "import datasets\nimport evaluate\n\n\nclass Glue(evaluate.Metric):\n"
        "    def _info(self):\n        kinds = {'predictions': datasets.Value('int64'),"
        " 'references': datasets.Value('int64')}\n"
        "        return evaluate.MetricInfo(description='', citation='',"
        " features=datasets.Features(kinds))\n\n"
        "    def _compute(self, predictions, references):\n        return {'count': 1.0}\n"
    )


KINDS = {each.__name__: each for each in (language, tokens, mnist, images, glue, clip)}

if __name__ == "__main__":
    os.makedirs(sys.argv[2], exist_ok=True)
    KINDS[sys.argv[1]](Path(sys.argv[2]))
