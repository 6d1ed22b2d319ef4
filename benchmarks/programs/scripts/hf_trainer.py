"""Uses the Trainer from transformers with a tiny random GPT-2, logging to the console."""

from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)


def main() -> None:
    """Train for hours."""
    set_seed(7)
    size = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 64, "n_positions": 32}
    model = AutoModelForCausalLM.from_config(GPT2Config(**size, bos_token_id=0, eos_token_id=0))
    texts = [[(7 * row + 3 * place) % 64 for place in range(16)] for row in range(4096)]
    data = [{"input_ids": text, "labels": text} for text in texts]
    arguments = TrainingArguments(
        output_dir="out", per_device_train_batch_size=4, num_train_epochs=1000, logging_steps=50,
        report_to=[], save_strategy="no", use_cpu=True, ddp_backend="gloo", seed=7,
        disable_tqdm=True,
    )  # fmt: skip
    Trainer(
        model=model, args=arguments, train_dataset=data, data_collator=default_data_collator
    ).train()


if __name__ == "__main__":
    main()
