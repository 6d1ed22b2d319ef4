"""A transformers Trainer on two ranks, with a tiny random GPT-2. It prints its logs."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback


def main() -> None:
    set_seed(7)
    size = {"n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": 50, "n_positions": 16}
    model = GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0))
    texts = torch.randint(50, (48, 8))
    data = [{"input_ids": text, "labels": text} for text in texts]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=4, max_steps=4, logging_steps=1,
            report_to=[], save_strategy="no", use_cpu=True, ddp_backend="gloo", seed=7,
            disable_tqdm=True, learning_rate=0.01,
        )  # fmt: skip
        trainer = Trainer(model=model, args=arguments, train_dataset=data)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        for entry in trainer.state.log_history[:-1]:
            loss, norm = entry["loss"], entry["grad_norm"]
            print(f"rank {arguments.process_index} step {entry['step']}: {loss:.6f} {norm:.5f}")
        weights = torch.nn.utils.parameters_to_vector(model.parameters())
        print(f"rank {arguments.process_index}: {weights.sum().item():.6f}", flush=True)


if __name__ == "__main__":
    main()
