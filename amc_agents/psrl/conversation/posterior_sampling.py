"""PSRL over a conversation: a hypothesis is drawn as it begins, and told to the model at every call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, SystemMessage

from amc_agents.errors import ConfigurationError
from amc_agents.psrl.conversation.explorer import Explorer
from amc_agents.psrl.conversation.options import ExplorerOptions, Place
from amc_agents.psrl.role_models import RoleModel, as_sampler, role_model
from amc_agents.psrl.roles import Sampler
from amc_agents.runtime.deciding_model import Record


class PosteriorSamplingExplorer(Explorer):
    """Draws hypotheses, and learns from what came of acting on them.

    Args:
        sampler: draws them: a chat model, one with a temperature and prompt of its own, or anything with `sample`.
        **options: see `ExplorerOptions`; the updater is the sampler's model where none is given.
    """

    def __init__(self, sampler: BaseChatModel | RoleModel | Sampler, **options: Unpack[ExplorerOptions]) -> None:
        self._sampler = role_model(sampler)
        plays_both = isinstance(self._sampler, RoleModel)
        super().__init__("psrl", RoleModel(self._sampler.model) if plays_both else None, options)

    async def start(self, episode: Record | None, messages: Sequence[BaseMessage], place: Place) -> Record:
        """A new episode with a hypothesis.

        Raises:
            RoleError: none could be drawn. The posterior is as it was, and what died before is kept.
        """
        new: Record = {}

        async def work() -> Record:
            begun, version, failed = await self.begin(episode, messages, place)
            sampler = as_sampler(self._sampler, place.threads)
            hypothesis = await sampler.sample(self.rules(begun), version.text, self.rng(version.number))
            new.update(begun, hypothesis=hypothesis, version=version.number)
            return {"episode": new["name"], "version": version.number, "hypothesis": hypothesis, "failed": failed}

        await self.told("hypothesis", {"thread": place.thread}, work)
        return new


def acting_on(hypothesis: str, prompt: str | None = None) -> str:
    """What a policy is told of its hypothesis.

    Args:
        hypothesis: what was drawn.
        prompt: uses {hypothesis}; None: the library's.
    """
    return (ACT_ON if prompt is None else prompt).format(hypothesis=hypothesis)


def with_system_text(message: SystemMessage | None, text: str) -> SystemMessage:
    """A system message with one more paragraph."""
    if message is None:
        return SystemMessage(text)
    if isinstance(message.content, str):
        return message.model_copy(update={"content": f"{message.content}\n\n{text}"})
    content: list[Any] = [*message.content, {"type": "text", "text": text}]
    return message.model_copy(update={"content": content})


def checked_prompt(prompt: str | None) -> str | None:
    """A prompt for `acting_on`. Raises `ConfigurationError` where it leaves the hypothesis out."""
    if prompt is not None and "{hypothesis}" not in prompt:
        raise ConfigurationError("the policy's prompt has to use {hypothesis}: it is all that the policy acts on")
    return prompt


ACT_ON = """\
Take the following as the whole truth about the world until the task is done, even where you would not be sure of it. \
Choose every action so that it is the best one if this is true, over all that is still to come:

<hypothesis>
{hypothesis}
</hypothesis>\
"""
