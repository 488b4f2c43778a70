"""PNLC as a chat model: each answer has been thought over in one decision (`amc_agents.pnlc.decision.decide`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from langchain_core.language_models import BaseChatModel
from pydantic import Field, SkipValidation

from amc_agents.messages import trajectory_of
from amc_agents.pnlc.decision import PnlcDecision, PnlcPrompts, PnlcSettings, Proposer, decide
from amc_agents.pnlc.goals import ChatGoalProposer
from amc_agents.pnlc.thinker import ChatThinker, described
from amc_agents.runtime.deciding_model import Asked, DecidingModel, Made, Record, plain
from amc_agents.runtime.inner_calls import world_model_answers
from amc_agents.settings import OnCriticError
from amc_agents.usage import Usage, counting


class CritiqueRefineModel(DecidingModel):
    """A chat model that thinks its answers over with a critic's help. Made by `critique_refine_model`."""

    method: ClassVar[str] = "pnlc"

    settings: SkipValidation[PnlcSettings] = PnlcSettings()
    proposer: SkipValidation[BaseChatModel | Proposer | None] = Field(default=None, repr=False)
    """Thinks of goals; None: the policy does."""
    prompts: SkipValidation[PnlcPrompts] = Field(default_factory=PnlcPrompts, repr=False)

    @property
    def _llm_type(self) -> str:
        return "critique-refine"

    @property
    def _told_settings(self) -> dict[str, Any]:
        names = ("critique", "refine", "m" if self.settings.refine else "k", "n_positive", "n_negative")
        return {name: getattr(self.settings, name) for name in names}

    @property
    def _on_critic_error(self) -> OnCriticError:
        return self.settings.on_critic_error

    @property
    def _n_threads(self) -> int:
        return max(2, 1 if self.settings.refine else self.settings.k + 2)

    async def _decide(self, asked: Asked) -> Made:
        prompts = self._prompts_for(asked)
        thinker = ChatThinker(
            self.actor,
            asked.messages,
            prompts,
            system_is_task=self.system_is_task,
            callbacks=asked.callbacks,
            threads=asked.threads,
            **asked.call,
        )
        # What others than the policy use.
        with counting() as meter:
            decision = await decide(
                trajectory_of(asked.messages, system_is_task=self.system_is_task),
                thinker,
                self._proposer(prompts, asked),
                asked.chosen.critic,
                self.settings,
                prompts=prompts,
            )
        decision = replace(decision, notes=(*dict.fromkeys(thinker.notes), *decision.notes))
        return _made(decision, {"policy": thinker.usage, **meter.read()})

    def _prompts_for(self, asked: Asked) -> PnlcPrompts:
        """The prompts with the agent's tools, which are not bound where it is asked in words."""
        parts = (self.prompts.task, described(asked.call.get("tools") or ()))
        return replace(self.prompts, task="\n\n".join(part for part in parts if part))

    def _proposer(self, prompts: PnlcPrompts, asked: Asked) -> Proposer:
        if self.proposer is not None and not isinstance(self.proposer, BaseChatModel):
            return self.proposer
        model = self.actor if self.proposer is None else self.proposer
        return ChatGoalProposer(world_model_answers(model, asked.threads, run_name="goals"), prompts)


def _made(decision: PnlcDecision, usage: dict[str, Usage]) -> Made:
    """The decision and what is told of it; the message says nothing of thoughts that were given up."""
    used = {role: plain(one) for role, one in usage.items()}
    told: Record = {**decision.as_plain(), "usage": used}
    summary = {key: told[key] for key in ("round_trips", "notes", "usage", "chosen")}
    return Made(decision.sample.payload, told, {**summary, "thoughts": len(decision.thoughts)})
