"""An embedded policy as a forward model: it goes on writing the dialogue, the world's part too.

Its training saw what the world answers, with a small weight, so it can imagine an observation without being asked in
words, which it could not read. An adapter that was trained on observations can play the world's part instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from amc_agents.critics.render import turn
from amc_agents.messages import split_turn
from amc_agents.models.batcher import Batcher
from amc_agents.models.embedded.chat import EmbeddedChatModel, model_folder
from amc_agents.models.embedded.decoder import EmbeddedDecoder
from amc_agents.models.embedded.llama import NumpyLlama
from amc_agents.models.embedded.tokenizer import ASSISTANT, WordTokenizer
from amc_agents.models.engine import Answer, Request, Sampling
from amc_agents.types import Step, Trajectory
from amc_agents.usage import Usage, record

OBSERVATION_TOKENS, TURN_TOKENS = 80, 160
"""Most tokens of what the world says, and of what the agent does. A forward model that has lost its way writes on, and
a critic reads no round that is longer than any it was trained on."""
FORWARD = "forward"
"""Name of the forward model's adapter (LoRA, as the value model's) inside the policy's folder."""


class EmbeddedImagination:
    """What may come after candidate actions, by the likeliest words of an embedded policy.

    An `amc_agents.lac.decision.Imagination` that writes no reflections. A step after the first takes two requests, one
    for the agent's turn and one for the world's.

    Args:
        model: a shipped model's name, or a folder.
        depth: the most steps, the candidate's own included.
        adapter: of the model that plays the world; None: `forward/` inside the policy's folder, or where there is none
            the policy itself.
    """

    def __init__(self, model: str = "crafting", *, depth: int = 1, adapter: str | Path | None = None) -> None:
        engine = EmbeddedChatModel(model=model)._engine()
        assert isinstance(engine.tokenizer, WordTokenizer)
        folder = model_folder(model)
        if adapter is None and (folder / FORWARD).is_dir():
            adapter = folder / FORWARD
        self._agent: Batcher = engine.batcher
        self._world = _world(folder, None if adapter is None else Path(adapter))
        self._tokenizer = engine.tokenizer
        self._depth, self._name = depth, model

    async def imagine(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """`[A]` the trajectories with imagined observations and further steps; one that finds no end stays as it is."""
        return list(await asyncio.gather(*map(self._rollout, trajectories)))

    async def _rollout(self, candidate: Trajectory) -> Trajectory:
        """One candidate's future. Those of all candidates wait at the same time, so they share batches."""
        going = candidate
        for number in range(1, self._depth + 1):
            observation = await self._written(going, by_world=True)
            if not observation:
                # The newest action was imagined too, unless it is the candidate's own.
                return candidate if number == 1 else going.prefix(len(going.steps) - 1)
            *past, newest = going.steps
            going = replace(going, steps=(*past, replace(newest, observation=observation)))
            if number == self._depth:
                break
            thought, action = split_turn(await self._written(going, by_world=False))
            if not action:
                break
            going = going.extended(Step(action, thought=thought))
        return going

    async def _written(self, trajectory: Trajectory, *, by_world: bool) -> str:
        """What the world says next, or the agent; empty where no end is found."""
        dialogue = [("user", trajectory.task.instruction)]
        for step in trajectory.steps:
            dialogue += [("assistant", turn(step)), ("user", step.observation)]
        # The newest observation is empty, so the prompt ends with the token after which the world speaks.
        prompt = self._tokenizer.encode_chat(dialogue, add_generation_prompt=not by_world)
        limit = OBSERVATION_TOKENS if by_world else TURN_TOKENS
        sampling = Sampling(temperature=0.0, max_tokens=limit)
        speaker = self._world if by_world else self._agent
        answer: Answer = await speaker.agenerate(Request(tuple(prompt), sampling, seed=0))
        (said,) = answer.completions
        used = Usage(1, answer.prompt_tokens, len(said.tokens), answer.cached_tokens)
        record("world model", used, model=f"amc_agents:{self._name}")
        return said.text.strip() if said.finish_reason == "stop" else ""


@lru_cache(maxsize=4)
def _world(folder: Path, adapter: Path | None) -> Batcher:
    """Who writes what the world says: it is over where the agent would speak."""
    tokenizer = WordTokenizer.from_folder(folder)
    decoder = EmbeddedDecoder(NumpyLlama.load(folder, adapter), tokenizer)
    decoder.end_tokens |= {tokenizer.vocabulary[ASSISTANT]}
    return Batcher(decoder)
