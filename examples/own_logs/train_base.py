"""Train a small language model on the text of a dataset. With a real language model as --base, this is not needed."""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from amc_agents.critics.render import PLAIN
from amc_agents.training.dataset import read_trajectories

STEPS, BATCH, CONTEXT = 150, 16, 400


def main(data: str, out: str) -> None:
    """Write a transformers folder with a byte-level tokenizer."""
    torch.manual_seed(0)
    # A model this small is faster on a single thread.
    torch.set_num_threads(1)
    texts = ["".join(PLAIN.segments(trajectory)) for trajectory in read_trajectories(data)]
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    raw.decoder = decoders.ByteLevel()
    special = ["<end>", "<pad>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=800, special_tokens=special, initial_alphabet=alphabet)
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<end>", pad_token="<pad>")
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=96, intermediate_size=256, num_hidden_layers=3, num_attention_heads=3,
        num_key_value_heads=3, max_position_embeddings=1024, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=0, pad_token_id=1,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=STEPS)
    tokens = [tokenizer(text)["input_ids"][:CONTEXT] for text in texts]
    rng, start = np.random.default_rng(0), time.monotonic()
    for step in range(STEPS):
        rows = [tokens[index] for index in rng.integers(len(tokens), size=BATCH)]
        ids = torch.full((BATCH, max(map(len, rows))), 1)
        for row, numbers in enumerate(rows):
            ids[row, : len(numbers)] = torch.tensor(numbers)
        loss = model(input_ids=ids, labels=ids.masked_fill(ids == 1, -100)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 49:
            print(f"step {step + 1}: loss {loss.item():.3f}, {time.monotonic() - start:.0f} s", flush=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
