"""An ignite training loop on two ranks, which prints the loss of each epoch."""

import ignite.distributed as idist
import torch
from ignite.engine import Events, create_supervised_trainer
from ignite.metrics import RunningAverage


def training(local_rank: int) -> None:
    torch.manual_seed(7)
    model = idist.auto_model(
        torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
    )
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1))
    data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    torch.manual_seed(idist.get_rank())
    loader = idist.auto_dataloader(data, batch_size=8, shuffle=True, pin_memory=False)
    trainer = create_supervised_trainer(model, optimizer, torch.nn.functional.mse_loss)
    RunningAverage(output_transform=float).attach(trainer, "loss")

    @trainer.on(Events.EPOCH_COMPLETED)
    def tell(engine: object) -> None:
        print(
            f"rank {idist.get_rank()} of {idist.get_world_size()} epoch {engine.state.epoch}:"
            f" {engine.state.metrics['loss']:.6f}",
            flush=True,
        )

    trainer.run(loader, max_epochs=3)


if __name__ == "__main__":
    with idist.Parallel(backend="gloo") as parallel:
        parallel.run(training)
