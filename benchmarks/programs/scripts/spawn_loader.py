"""Uses DDP with a DataLoader whose worker processes are spawned rather than forked."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Squares(Dataset):  # type: ignore[misc]
    """A data set of numbers and their squares."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        number = np.float32(place % 100) / 100
        return torch.tensor([number]), torch.tensor([number * number])


def main() -> None:
    """Train for hours."""
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(7)
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    )
    optimizer = torch.optim.AdamW(model.parameters())
    data = Squares()
    loader = DataLoader(
        data, batch_size=8, num_workers=1, sampler=DistributedSampler(data),
        multiprocessing_context="spawn",
    )  # fmt: skip
    for number, square in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(number), square).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
