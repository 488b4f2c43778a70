"""A world with an embedded policy and its value model, stepped in batches: what the searches of this folder run on.

It skips LangGraph and asyncio's scheduling, which cost more than a policy of 0.36 M parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from amc_agents.critics.value.local import EmbeddedCritic
from amc_agents.messages import split_turn
from amc_agents.models.embedded.decoder import EmbeddedDecoder
from amc_agents.models.embedded.llama import NumpyLlama
from amc_agents.models.embedded.weights import model_folder
from amc_agents.models.engine import choose
from amc_agents.models.tokenizers import ASSISTANT, USER, WordTokenizer
from amc_agents.types import Environment, FloatArray, Step, Task, Trajectory

Tokens = tuple[int, ...]
Uniform = Callable[[Sequence[int], int], FloatArray]
MAX_TOKENS = 64
"""Maximum length of a turn, as in `EmbeddedChatModel`."""


@dataclass(frozen=True, eq=False)
class State:
    """A particle between two steps."""

    trajectory: Trajectory
    world: Environment = field(repr=False)
    dialogue: Tokens = field(repr=False)
    """The policy's prompt for the next turn."""
    proposal: int = 0
    """Which proposal the particle is sampled from; its descendants keep it."""

    @property
    def finished(self) -> bool:
        """Whether the trajectory has ended."""
        return self.trajectory.done


@dataclass
class Spent:
    """Costs so far. Tokens are those newly read or written; what a prefix cache answers is free."""

    policy_calls: int = 0
    """Number of sampled turns; K candidates of one prompt count as K."""
    policy_tokens: int = 0
    critic_calls: int = 0
    critic_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of policy and critic."""
        return self.policy_tokens + self.critic_tokens


class Policy:
    """An embedded policy: samples a turn for each of many prompts in one batch.

    Args:
        name: a shipped model, or a folder.
        cache_tokens: capacity of the prefix cache.
    """

    def __init__(self, name: str, cache_tokens: int = 60_000) -> None:
        folder = model_folder(name)
        self.tokenizer = WordTokenizer.from_folder(folder)
        self._decoder = EmbeddedDecoder(NumpyLlama.load(folder), self.tokenizer, cache_tokens)
        self._user, self._assistant = (self.tokenizer.vocabulary[word] for word in (USER, ASSISTANT))

    def opening(self, instruction: str) -> Tokens:
        """Return the prompt of the first turn."""
        return tuple(self.tokenizer.encode_chat([("user", instruction)]))

    def extended(self, dialogue: Tokens, turn: str, observation: str) -> Tokens:
        """Return the prompt after a turn and the world's answer: `encode_chat` of the longer dialogue."""
        said, seen = (self.tokenizer.encode(text, special=False) for text in (turn, observation))
        return (*dialogue, *said, self.tokenizer.end_id, self._user, *seen, self._assistant)

    def turns(
        self, prompts: Sequence[Tokens], rng: np.random.Generator, temperatures: FloatArray, spent: Spent
    ) -> list[str]:
        """Sample a turn for each prompt, and count the cost."""
        said, read = self.said(prompts, lambda rows, _: rng.random(len(rows)), temperatures)
        spent.policy_calls += len(prompts)
        spent.policy_tokens += read + sum(map(len, said))
        return [self._decoder.decode(tokens) for tokens in said]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of a turn."""
        return self._decoder.decode(tokens)

    def said(
        self, prompts: Sequence[Tokens], uniform: Uniform, temperatures: FloatArray
    ) -> tuple[list[list[int]], int]:
        """Sample a turn for each prompt; equal prompts are read once.

        Args:
            prompts: `[N]` dialogues.
            uniform: (rows, number of the token) -> a random number in [0, 1) per row.
            temperatures: `[N]`.

        Returns:
            `[N]` tokens of the turns, and the number of tokens that were newly read.
        """
        decoder = self._decoder
        joined = decoder.join(prompts)
        rows, said = list(joined.order), {row: list[int]() for row in range(len(prompts))}
        read = sum(len(prompts[row]) - cached for row, cached in zip(joined.order, joined.cached, strict=True))
        logits, number = joined.logits, 0
        while rows:
            of_rows = temperatures[rows]
            drawn = choose(logits, of_rows, np.ones(len(rows)), uniform(rows, number))
            number += 1
            for row, token in zip(rows, drawn.tolist(), strict=True):
                said[row].append(token)
            for index in reversed(range(len(rows))):
                turn = said[rows[index]]
                if turn[-1] in decoder.end_tokens or len(turn) == MAX_TOKENS:
                    decoder.leave(index)
                    rows[index] = rows[-1]
                    rows.pop()
            if rows:
                logits = decoder.step(np.array([said[row][-1] for row in rows]))
        return [said[row] for row in range(len(prompts))], read


@dataclass
class Table:
    """A task, and the players at it: the model that a search runs on."""

    task: Task
    make: Callable[[], Environment]
    policies: Sequence[Policy]
    """One per proposal."""
    temperatures: Sequence[float]
    """One per proposal."""
    critic: EmbeddedCritic
    rng: np.random.Generator
    horizon: int = 20
    hide_rewards: bool = False
    """Whether the critic judges final states, too, instead of the rewards."""
    spent: Spent = field(default_factory=Spent)

    async def begin(self, n: int) -> list[State]:
        """Return n particles before their first step, with equal shares of the proposals."""
        world = self.make()
        await world.reset(self.task)
        kinds = np.sort(np.arange(n) % len(self.temperatures)).tolist()
        opening = self.policies[0].opening(self.task.instruction)
        return [State(Trajectory(self.task), world, opening, kind) for kind in kinds]

    async def step(self, states: Sequence[State]) -> list[State]:
        """Move each of some unfinished states by a step of its proposal."""
        turns: dict[int, str] = {}
        for policy in dict.fromkeys(self.policies):
            of_policy = [index for index, state in enumerate(states) if self.policies[state.proposal] is policy]
            if of_policy:
                prompts = [states[index].dialogue for index in of_policy]
                heat = np.array([self.temperatures[states[index].proposal] for index in of_policy])
                turns |= zip(of_policy, policy.turns(prompts, self.rng, heat, self.spent), strict=True)
        return [await self._after(state, turns[index]) for index, state in enumerate(states)]

    async def _after(self, state: State, turn: str) -> State:
        world = await state.world.fork(0)
        thought, action = split_turn(turn)
        answer = await world.step(action)
        cut = not answer.done and len(state.trajectory.steps) + 1 >= self.horizon
        step = Step(action, answer.observation, thought, answer.reward)
        trajectory = state.trajectory.extended(step, done=answer.done or cut, truncated=cut)
        dialogue = self.policies[state.proposal].extended(state.dialogue, turn, answer.observation)
        return replace(state, trajectory=trajectory, world=world, dialogue=dialogue)

    async def values(self, states: Sequence[State]) -> FloatArray:
        """`[N]` the expected whole return of each state: its return if it is finished and rewards are seen."""
        judged = [index for index, state in enumerate(states) if self.hide_rewards or not state.finished]
        values = np.array([state.trajectory.return_ for state in states], dtype=np.float64)
        if judged:
            before = self.critic.usage
            values[judged] = await self.critic.values([states[index].trajectory for index in judged])
            used = self.critic.usage
            self.spent.critic_calls += used.calls - before.calls
            read = used.input_tokens - before.input_tokens - (used.cached_tokens - before.cached_tokens)
            self.spent.critic_tokens += read
        return values
