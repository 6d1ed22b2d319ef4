"""A Lightning Trainer with DDP on two ranks, which prints the loss of each step and the weights."""

import warnings

import lightning
import torch


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1)
        )

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        print(f"rank {self.global_rank} step {number}: {loss.item():.6f}", flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    warnings.simplefilter("ignore")
    lightning.seed_everything(7)
    data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    model = Model()
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=8, shuffle=True))
    weights = torch.nn.utils.parameters_to_vector(model.parameters())
    print(f"rank {trainer.global_rank}: {weights.sum().item():.6f}", flush=True)


if __name__ == "__main__":
    main()
