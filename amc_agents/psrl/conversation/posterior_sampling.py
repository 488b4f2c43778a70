"""PSRL over a conversation: a hypothesis is drawn at the start of an episode and shown to the model at every call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, SystemMessage

from amc_agents.errors import ConfigurationError
from amc_agents.psrl.conversation.explorer import Explorer
from amc_agents.psrl.conversation.options import ExplorerOptions, Place
from amc_agents.psrl.role_models import RoleModel, as_role_model, as_sampler
from amc_agents.psrl.roles import Sampler
from amc_agents.runtime.deciding import Record


class PosteriorSamplingExplorer(Explorer):
    """Draws hypotheses and learns from the outcomes of acting on them.

    Args:
        sampler: draws hypotheses: a chat model, a `RoleModel` with temperature and prompt, or any object with `sample`.
        **options: see `ExplorerOptions`. The default updater is the sampler's model.
    """

    def __init__(self, sampler: BaseChatModel | RoleModel | Sampler, **options: Unpack[ExplorerOptions]) -> None:
        self._sampler = as_role_model(sampler)
        is_model = isinstance(self._sampler, RoleModel)
        super().__init__("psrl", RoleModel(self._sampler.model) if is_model else None, options)

    async def start(self, episode: Record | None, messages: Sequence[BaseMessage], place: Place) -> Record:
        """Begin an episode and draw its hypothesis.

        Raises:
            RoleError: the sampler failed. The posterior is unchanged, and earlier observations are stored.
        """
        new: Record = {}

        async def work() -> Record:
            begun, version, failed = await self.begin(episode, messages, place)
            sampler = as_sampler(self._sampler)
            hypothesis = await sampler.sample(self.rules(begun), version.text, self.rng(version.number))
            new.update(begun, hypothesis=hypothesis, version=version.number)
            return {"episode": new["name"], "version": version.number, "hypothesis": hypothesis, "failed": failed}

        await self.traced("hypothesis", {"thread": place.thread}, work)
        return new


def hypothesis_prompt(hypothesis: str, prompt: str | None = None) -> str:
    """Format the text that tells a policy to act on a hypothesis.

    Args:
        hypothesis: the hypothesis.
        prompt: a template with {hypothesis}; None for the library's template.
    """
    return (ACT_ON if prompt is None else prompt).format(hypothesis=hypothesis)


def with_system_text(message: SystemMessage | None, text: str) -> SystemMessage:
    """Return a system message with a paragraph appended."""
    if message is None:
        return SystemMessage(text)
    if isinstance(message.content, str):
        return message.model_copy(update={"content": f"{message.content}\n\n{text}"})
    content: list[Any] = [*message.content, {"type": "text", "text": text}]
    return message.model_copy(update={"content": content})


def checked_prompt(prompt: str | None) -> str | None:
    """Return a template for `hypothesis_prompt`.

    Raises:
        ConfigurationError: the template does not use {hypothesis}.
    """
    if prompt is not None and "{hypothesis}" not in prompt:
        raise ConfigurationError("the policy's prompt must use {hypothesis}, which is all that the policy acts on")
    return prompt


ACT_ON = """\
Take the following as the whole truth about the world until the task is done, even where you would not be sure of it. \
Choose every action so that it is the best one if this is true, over all that is still to come:

<hypothesis>
{hypothesis}
</hypothesis>\
"""
