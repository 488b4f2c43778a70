"""LAC as a chat model: each answer is the choice of one decision (`amc_agents.lac.decision.decide`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, convert_to_openai_messages
from pydantic import Field, SkipValidation

from amc_agents.critics.render import turn
from amc_agents.decisions.asking import Answers
from amc_agents.errors import ConfigurationError, CriticError
from amc_agents.lac.decision import Decision, Imagination, LacSettings, Rescorer, decide, decide_among
from amc_agents.lac.imagination import ChatImagination
from amc_agents.lac.reflected_messages import reflect, with_past_reflections
from amc_agents.lac.reflection import ChatReflector
from amc_agents.lac.text_scoring import ChatRescorer, TextScorer
from amc_agents.messages import trajectory_of
from amc_agents.runtime.deciding_model import Asked, DecidingModel, Made, Record, plain
from amc_agents.runtime.inner_calls import world_model_answers
from amc_agents.runtime.sampling_actor import ChatActor
from amc_agents.settings import OnCriticError
from amc_agents.types import Step

Listed = Sequence[str] | Callable[[Sequence[BaseMessage]], Sequence[str]]
"""All that can be done, or what lists it by the conversation so far."""


class ActorCriticModel(DecidingModel):
    """A chat model whose answer is the choice among K candidates of another one. Made by `actor_critic_model`."""

    method: ClassVar[str] = "lac"

    settings: SkipValidation[LacSettings] = LacSettings()
    world_model: SkipValidation[BaseChatModel | Imagination | None] = Field(default=None, repr=False)
    """Imagines what comes after a candidate, and reflects; None: the actor does."""
    scorer: SkipValidation[TextScorer | None] = Field(default=None, repr=False)
    """Scores texts by the policy, for the priors that need it."""
    actions: SkipValidation[Listed | None] = None
    """All that can be done, where the world lists it."""

    @property
    def _llm_type(self) -> str:
        return "actor-critic"

    @property
    def _told_settings(self) -> dict[str, Any]:
        return {name: getattr(self.settings, name) for name in ("k", "alpha", "prior", "greedy", "depth", "reflect")}

    @property
    def _on_critic_error(self) -> OnCriticError:
        return self.settings.on_critic_error

    @property
    def _n_threads(self) -> int:
        return self.settings.k + 1

    async def _decide(self, asked: Asked) -> Made:
        answers = world_model_answers(self._world, asked.threads)
        shown, reflection, notes = await self._reflected(asked.messages, answers)
        actor = ChatActor(
            self.actor,
            shown,
            callbacks=asked.callbacks,
            threads=asked.threads,
            log_likelihoods=self.settings.prior == "likelihood" and self.scorer is None,
            **asked.call,
        )
        trajectory = trajectory_of(shown, system_is_task=self.system_is_task)
        rescorer = self._rescorer(actor, shown, asked.call)
        known = asked.chosen.critic, self.settings
        more: Any = {
            "imagination": self._imagination(answers),
            "rng": np.random.default_rng() if asked.rng is None else asked.rng,
        }
        if self.actions is None or rescorer is None:
            decision = await decide(trajectory, actor, *known, rescorer=rescorer, **more)
        else:
            listed = self.actions(shown) if callable(self.actions) else self.actions
            thinking = actor if self.settings.prior == "thoughts" else None
            decision = await decide_among(trajectory, listed, rescorer, *known, actor=thinking, **more)
        decision = replace(
            decision, round_trips=decision.round_trips + bool(reflection), notes=(*notes, *actor.notes, *decision.notes)
        )
        return _made(decision, actor, reflection)

    async def _reflected(
        self, messages: list[BaseMessage], answers: Answers
    ) -> tuple[list[BaseMessage], str, tuple[str, ...]]:
        """The conversation with its reflections, the newest of them, and notes on it."""
        if not self.settings.reflect:
            return messages, "", ()
        try:
            return *await reflect(messages, ChatReflector(answers), system_is_task=self.system_is_task), ()
        except CriticError as error:
            if self.settings.on_critic_error == "raise":
                raise
            return with_past_reflections(messages), "", (f"nothing was reflected on: {error}",)

    @property
    def _world(self) -> BaseChatModel:
        return self.world_model if isinstance(self.world_model, BaseChatModel) else self.actor

    def _imagination(self, answers: Answers) -> Imagination | None:
        if self.settings.depth == 0 or not self.settings.use_critic:
            return None
        if self.world_model is not None and not isinstance(self.world_model, BaseChatModel):
            return self.world_model
        return ChatImagination(answers, depth=self.settings.depth, reflect=self.settings.reflect)

    def _rescorer(self, actor: ChatActor, shown: list[BaseMessage], call: Mapping[str, Any]) -> Rescorer | None:
        if self.scorer is None or self.settings.prior == "frequency":
            return None
        if call.get("tools"):
            raise ConfigurationError(
                f"prior={self.settings.prior!r} scores turns as text, and this policy calls tools, which every chat "
                'template writes in a way of its own: use prior="frequency"'
            )
        dialogue: Any = convert_to_openai_messages(shown)
        return ChatRescorer(self.scorer, dialogue, temperature=actor.setting("temperature", 1.0))


def _made(decision: Decision, actor: ChatActor, reflection: str) -> Made:
    """The decision and what is told of it; nothing of the other candidates is in the message."""
    said = {"reflection": reflection} if reflection else {}
    record: Record = {**decision.as_plain(), **said, "usage": {"policy": plain(actor.usage)}}
    told = ("prior", "alpha", "round_trips", "notes", "usage", "reflection")
    summary = {key: record[key] for key in told if key in record}
    summary |= {"candidates": len(decision.candidates), "samples": sum(one.n for one in decision.candidates)}
    chosen = decision.sample
    # An action that the world listed and no sample did: written as the policy would have.
    unsampled = AIMessage(turn(Step(chosen.action, thought=chosen.thought)))
    return Made(chosen.payload or unsampled, record, summary)
