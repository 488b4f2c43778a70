"""An embedded policy as a forward model: it continues the dialogue, including the world's turns.

The policy was also trained on observations, with a small weight, so it can generate an observation without a prompt in
words, which it could not read. An adapter trained on observations can generate the world's turns instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from amc_agents.budget import Bound, claim
from amc_agents.critics.render import turn
from amc_agents.messages import split_turn
from amc_agents.models.batcher import Batcher
from amc_agents.models.embedded.decoder import EmbeddedDecoder
from amc_agents.models.embedded.llama import NumpyLlama
from amc_agents.models.embedded.policy import EmbeddedChatModel
from amc_agents.models.embedded.weights import model_folder
from amc_agents.models.engine import Answer, Request, Sampling
from amc_agents.models.tokenizers import ASSISTANT, WordTokenizer
from amc_agents.types import Step, Trajectory
from amc_agents.usage import Usage, record

OBSERVATION_TOKENS, TURN_TOKENS = 80, 160
"""Maximum tokens of an observation and of an agent's turn. A forward model off its training data may never end, and a
critic was not trained on longer rounds."""
FORWARD = "forward"
"""Name of the forward model's LoRA adapter inside the policy's folder."""


class EmbeddedImagination:
    """Imagines the steps after candidate actions by greedy decoding of an embedded policy.

    An `amc_agents.lac.decision.Imagination` without reflections. Each step after the first takes two requests, one
    for the agent's turn and one for the world's.

    Args:
        model: name of a shipped model, or a folder.
        depth: maximum number of steps, including the candidate's.
        adapter: adapter for the world's turns; None: `forward/` inside the policy's folder, or the policy itself if
            the folder does not exist.
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

    @property
    def charged_as(self) -> str:
        """Name of the model under which a budget is charged."""
        return f"amc_agents:{self._name}"

    async def imagine(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """Return `[A]` the trajectories with imagined steps; a trajectory whose observation never ends is unchanged."""
        return list(await asyncio.gather(*map(self._rollout, trajectories)))

    async def _rollout(self, candidate: Trajectory) -> Trajectory:
        """Imagine the steps after one candidate. All candidates run concurrently, so their requests share batches."""
        rollout = candidate
        for number in range(1, self._depth + 1):
            observation = await self._generate(rollout, by_world=True)
            if not observation:
                # After the first step, the newest action was imagined too and is dropped.
                return candidate if number == 1 else rollout.prefix(len(rollout.steps) - 1)
            *past, newest = rollout.steps
            rollout = replace(rollout, steps=(*past, replace(newest, observation=observation)))
            if number == self._depth:
                break
            thought, action = split_turn(await self._generate(rollout, by_world=False))
            if not action:
                break
            rollout = rollout.extended(Step(action, thought=thought))
        return rollout

    async def _generate(self, trajectory: Trajectory, *, by_world: bool) -> str:
        """Generate the next turn of the world or of the agent; empty if it does not end within the limit."""
        dialogue = [("user", trajectory.task.instruction)]
        for step in trajectory.steps:
            dialogue += [("assistant", turn(step)), ("user", step.observation)]
        # The newest observation is empty, so the prompt ends with the token that starts the world's turn.
        prompt = self._tokenizer.encode_chat(dialogue, add_generation_prompt=not by_world)
        limit = OBSERVATION_TOKENS if by_world else TURN_TOKENS
        sampling = Sampling(temperature=0.0, max_tokens=limit)
        batcher = self._world if by_world else self._agent
        async with claim([Bound(self.charged_as, len(prompt), limit)]) as claimed:
            answer: Answer = await batcher.agenerate(Request(tuple(prompt), sampling, seed=0))
            (completion,) = answer.completions
            usage = Usage(1, answer.prompt_tokens, len(completion.tokens), answer.cached_tokens)
            claimed.settle(usage)
        record("world model", usage, model=self.charged_as)
        return completion.text.strip() if completion.finish_reason == "stop" else ""


@lru_cache(maxsize=4)
def _world(folder: Path, adapter: Path | None) -> Batcher:
    """Load the model of the world's turns. A turn also ends at the token that starts the agent's turn."""
    tokenizer = WordTokenizer.from_folder(folder)
    decoder = EmbeddedDecoder(NumpyLlama.load(folder, adapter), tokenizer)
    decoder.end_tokens |= {tokenizer.vocabulary[ASSISTANT]}
    return Batcher(decoder)
