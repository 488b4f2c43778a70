"""The trainer's pool of dialogues and the batched sampler of reproduce/larger."""

import asyncio
import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from reproduce.larger import batched, from_scratch, search

END = 3
LONGEST = 8


def test_a_pool_draws_the_dialogues_that_were_used_least(monkeypatch):
    pool, rng = from_scratch.Pool(100_000), np.random.default_rng(1)
    lengths = np.array([5, 3, 9, 4])
    # Each dialogue consists of one token, so that a batch tells which dialogues it holds.
    pool.add(lengths, np.repeat([1, 2, 3, 4], lengths), np.repeat([0, 1, 2, 2], lengths))
    drawn = [row for batch in pool.batches(1, rng) for row in zip(*batch, strict=True)]
    weights = {int(ids[0]): float(weights.sum()) for ids, weights in drawn}
    assert len(drawn) == 4
    assert weights == {1: 0.0, 2: pytest.approx(0.3), 3: 9.0, 4: 4.0}
    for _ in range(3):
        pool.batches(1, rng)
    pool.add(np.array([7]), np.full(7, 9), np.full(7, 2))
    monkeypatch.setattr(from_scratch, "BATCH_TOKENS", 9)
    batches = pool.batches(1, rng)
    assert [int(row[0]) for ids, _ in batches for row in ids] == [9]
    assert all(ids.numel() <= 9 for ids, _ in batches)


def test_turns_from_a_cache_are_those_of_the_whole_dialogue(monkeypatch):
    monkeypatch.setattr(batched, "MAX_TURN", LONGEST)
    torch.manual_seed(0)
    model = from_scratch.llama(40, hidden=32, layers=2, heads=4)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(6)  # far from uniform, so that the greedy token is beyond rounding
    policy = batched.Batched(model, end=END, n_rows=8, seed=0)
    dialogues = [(5, 7, 9), (6, 8, 10, 11, 12), (5, 7, 9)]
    said, places = policy.turns(dialogues, [1e-6] * 3, [None] * 3)
    longer = [(*dialogue, *turn, 13, 14) for dialogue, turn in zip(dialogues, said, strict=True)]
    again, _ = policy.turns(longer, [1e-6] * 3, places)
    assert said == [greedy(model, dialogue) for dialogue in dialogues]
    assert again == [greedy(model, dialogue) for dialogue in longer]


class Step:
    """Stands for the keys and values of all rows of a step."""


def test_a_search_keeps_the_cache_of_its_latest_step_alone():
    steps = []

    def turns(dialogues, heats, places):
        step = Step()
        steps.append(weakref.ref(step))
        return [(END,)] * len(dialogues), [batched.Place(step, row, 0) for row in range(len(dialogues))]

    after = SimpleNamespace(state=0, heard=(), done=False)
    known = SimpleNamespace(opening=(5,), after=lambda state, turn: after)
    together = search.Together(SimpleNamespace(turns=turns))
    seat = search.Seat(together, known, None, 1.0)

    async def resampled():
        first = await seat.step(await seat.begin(2))
        return await seat.step([first[0]] * 2)  # the other particle's cache is in no later step

    (nodes,) = asyncio.run(together.run([resampled()]))
    gc.collect()
    assert [step() is None for step in steps] == [True, False]
    assert set(seat.places) == set(nodes)


def greedy(model, dialogue):
    """A turn of the longest length, read anew for every token."""
    ids = list(dialogue)
    while len(ids) < len(dialogue) + LONGEST:
        ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        if ids[-1] == END:
            break
    return tuple(ids[len(dialogue) :])
