"""The programs: source, requirements, and command line for two CPU ranks."""

from pathlib import Path
from typing import NamedTuple

_SCRIPTS = str(Path(__file__).with_name("scripts"))
_NANOGPT = "https://github.com/karpathy/nanoGPT 3adf61e154c3fe3fca428ad6bc3818b27a3b8291"
_EXAMPLES = "https://github.com/pytorch/examples 77f55b912142e11fcfdf5b530231fb9c52f181e8"
_ACCELERATE = "https://github.com/huggingface/accelerate 16cb6eb80dd9aa8b4df1a63ef57863e455d53b83"


class Edit(NamedTuple):
    """A replacement in a file of a program that would otherwise need a GPU, or end too soon."""

    file: str
    old: str
    new: str


class Program(NamedTuple):
    """One program.

    Attributes:
        name: its name in the table.
        source: the URL of a repository with a commit, or a directory of scripts.
        command: the command line, starting with the script.
        below: the working directory within the source.
        unused: a pattern for files that are not fetched.
        packages: modules that its interpreter must have, besides torch.
        data: which kind of `data.py` it needs, and in which directory.
        edits: replacements in the program's files.
        variables: its environment variables.
    """

    name: str
    source: str
    command: str
    below: str = ""
    unused: str = ""
    packages: str = ""
    data: tuple[str, str] | None = None
    edits: tuple[Edit, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()


_CPU_OF_NANOGPT = (
    Edit("train.py", "    device = f'cuda:{ddp_local_rank}'\n", ""),
    Edit("train.py", "    torch.cuda.set_device(device)\n", ""),
    Edit("train.py", "DDP(model, device_ids=[ddp_local_rank])", "DDP(model)"),
)
_SMALL_NANOGPT = (
    "train.py config/train_shakespeare_char.py --device=cpu --dtype=float32 --backend=gloo"
    " --block_size=32 --batch_size=2 --n_layer=2 --n_head=2 --n_embd=32 --dropout=0.1"
    " --gradient_accumulation_steps=2 --eval_iters=1 --eval_interval=1000000 --max_iters=1000000"
)
_NO_GPU_COUNT = "if not verify_min_gpu_count(", "if False and verify_min_gpu_count("

PROGRAMS = (
    Program(
        "nanoGPT", _NANOGPT, f"{_SMALL_NANOGPT} --compile=False",
        packages="numpy", data=("tokens", "data/shakespeare_char"), edits=_CPU_OF_NANOGPT,
    ),
    Program(
        "nanoGPT, torch.compile", _NANOGPT, f"{_SMALL_NANOGPT} --compile=True",
        packages="numpy", data=("tokens", "data/shakespeare_char"), edits=_CPU_OF_NANOGPT,
    ),
    Program(
        "minGPT adder",
        "https://github.com/karpathy/minGPT 37baab71b9abea1b76ab957409a1cc2fbfba8a26",
        "projects/adder/adder.py --trainer.num_workers=1 --trainer.batch_size=8",
        packages="numpy", variables=(("PYTHONPATH", "."),),
    ),
    Program(
        "examples/imagenet", _EXAMPLES,
        "main.py --dummy --no-accel --arch=squeezenet1_1 --batch-size=1 --workers=1 --seed=7"
        " --dist-backend=gloo --dist-url=env://",
        "imagenet", packages="torchvision",
    ),
    Program(
        "examples/dcgan", _EXAMPLES,
        "main.py --dataset=fake --batchSize=4 --ngf=4 --ndf=4 --workers=1 --niter=1000",
        "dcgan", packages="torchvision",
    ),
    Program(
        "examples/mnist", _EXAMPLES, "main.py --no-accel --batch-size=8 --epochs=1000",
        "mnist", packages="torchvision", data=("mnist", "../data"),
    ),
    Program(
        "examples/mnist_hogwild (mp.spawn)", _EXAMPLES,
        "main.py --batch-size=8 --epochs=1000 --num-processes=1",
        "mnist_hogwild", packages="torchvision", data=("mnist", "../data"),
    ),
    Program(
        "examples/word_language_model", _EXAMPLES,
        "main.py --use-optimizer --emsize=16 --nhid=16 --batch_size=4 --data=data/small",
        "word_language_model", unused="wikitext-2/", data=("language", "data/small"),
    ),
    Program(
        "examples/ddp-tutorial", _EXAMPLES, "multigpu_torchrun.py 100000 100000",
        "distributed/ddp-tutorial-series",
        edits=(
            Edit("multigpu_torchrun.py",
                 '    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n', ""),
            Edit("multigpu_torchrun.py", '"nccl"', '"gloo"'),
            Edit("multigpu_torchrun.py", "DDP(self.model, device_ids=[self.gpu_id])",
                 "DDP(self.model)"),
            Edit("multigpu_torchrun.py", "to(self.gpu_id)", 'to("cpu")'),
            Edit("multigpu_torchrun.py", 'f"cuda:{self.gpu_id}"', '"cpu"'),
        ),
    ),
    Program(
        "examples/FSDP2", _EXAMPLES, "example.py", "distributed/FSDP2",
        edits=(
            Edit("example.py", *_NO_GPU_COUNT),
            Edit("example.py", ", device_id=device", ""),
            Edit("example.py", "range(10)", "range(100000)"),
            Edit("example.py", "n_layers=10", "n_layers=2"),
            Edit("example.py", "batch_size = 32", "batch_size = 1"),
        ),
    ),
    Program(
        "transformers Trainer", _SCRIPTS, "hf_trainer.py", packages="transformers accelerate",
        variables=(("ACCELERATE_USE_CPU", "true"),),
    ),
    Program(
        "accelerate nlp_example", _ACCELERATE, "nlp_example.py --cpu", "examples",
        packages="transformers accelerate datasets evaluate", data=("glue", "."),
        edits=(Edit("nlp_example.py", '"num_epochs": 3', '"num_epochs": 1000'),),
        variables=(("HF_HUB_OFFLINE", "1"),),
    ),
    Program(
        "accelerate cv_example", _ACCELERATE, "cv_example.py --cpu --data_dir=pets/all",
        "examples", packages="accelerate timm torchvision", data=("images", "pets"),
        edits=(
            Edit("cv_example.py", "pretrained=True", "pretrained=False"),
            Edit("cv_example.py", '"num_epochs": 3', '"num_epochs": 1000'),
            Edit("cv_example.py", '"batch_size": 64', '"batch_size": 2'),
            Edit("cv_example.py", '"image_size": 224', '"image_size": 32'),
        ),
    ),
    Program(
        "Lightning CLI",
        "https://github.com/Lightning-AI/pytorch-lightning"
        " 7f0c3436cd3f6ad3753125672024fc415cbcb414",
        "backbone_image_classifier.py --trainer.accelerator=cpu --trainer.devices=2"
        " --trainer.strategy=ddp --trainer.max_epochs=1000 --trainer.logger=false"
        " --trainer.enable_progress_bar=false",
        "examples/pytorch/basics", packages="lightning torchvision jsonargparse",
        data=("mnist", "../../Datasets"),
        edits=(
            Edit("backbone_image_classifier.py",  # its own MNIST class downloads
                 "from lightning.pytorch.demos.mnist_datamodule import MNIST",
                 "from torchvision.datasets import MNIST"),
        ),
    ),
    Program(
        "timm train.py",
        "https://github.com/huggingface/pytorch-image-models"
        " aa4b5850c1543fa488abf260f18390eda46cf85d",
        "train.py --data-dir=pets --model=test_vit --num-classes=2 --device=cpu --batch-size=2"
        " --workers=1 --epochs=1000 --lr=0.01",
        packages="timm torchvision", data=("images", "pets"),
        edits=(Edit("train.py", "device_ids=[device], ", ""),),
    ),
    Program(
        "ignite mnist",
        "https://github.com/pytorch/ignite de08e799cfb55a6cf4aa778575d6bad725385453",
        "mnist.py --batch_size=8 --epochs=1000", "examples/mnist",
        packages="ignite torchvision tqdm", data=("mnist", "."),
    ),
    Program(
        "open_clip",
        "https://github.com/mlfoundations/open_clip 89fb801f1e6087880e951fc8354b8a2077b79c6d",
        "-m open_clip_train.main --dataset-type=synthetic --train-num-samples=100000"
        " --model=tiny --batch-size=2 --workers=1 --device=cpu --precision=fp32 --epochs=1000",
        "src", packages="timm torchvision ftfy regex webdataset pandas transformers",
        data=("clip", "open_clip/model_configs"),
        edits=(Edit("open_clip_train/main.py", "device_ids=[device], ", ""),),
    ),
    Program("DataLoader, spawned", _SCRIPTS, "spawn_loader.py", packages="numpy"),
)  # fmt: skip
