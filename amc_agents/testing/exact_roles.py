"""A chat model that plays the roles of PSRL and IDS exactly, given only the text of each prompt.

With this model LLM-PSRL must equal classic PSRL, action for action, which tests the content of the prompts and the
parsing of answers. It requires the library's prompts, and posteriors in the form of a typed prior.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from langchain_core.messages import BaseMessage

from amc_agents.models.seeding import particle_rng
from amc_agents.psrl.ids import GAIN_IS, REGRET_IS
from amc_agents.psrl.posterior.priors import hypothesis_text, parse_prior, read_hypothesis
from amc_agents.psrl.roles import ACTION, HYPOTHESIS, POSTERIOR, read_experience
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.types import Step

Stakes = Mapping[str, tuple[float, float]]
"""Action -> its expected regret, and its expected information in bits."""


def exact_roles_model(
    updated: Callable[[Any, Step], Any],
    *,
    policy: Callable[[Any, Sequence[Step]], str] | None = None,
    stakes: Callable[[Any, Sequence[Step]], Stakes] | None = None,
) -> ScriptedChatModel:
    """Create the model.

    Draws come from the generator of `amc_agents.models.seeding`, or from fresh entropy without such a generator.

    Args:
        updated: (posterior, step) -> the posterior after the step, by Bayes' rule. Posteriors are typed priors
            (`amc_agents.psrl.posterior.priors`).
        policy: (hypothesis, steps of the episode) -> the optimal action; None if the model does not play the policy.
        stakes: (posterior, steps of the episode) -> the stakes of every action; None if the model does not estimate.
    """

    def respond(messages: Sequence[BaseMessage]) -> str:
        prompt = messages[-1].text
        fields = {tag: text for tag, text in _TAGGED.findall(prompt)}
        for which, mark in enumerate((REGRET_IS, GAIN_IS)):
            if stakes is not None and prompt.endswith(f"{mark} <number>"):
                at_stake = stakes(parse_prior(fields["posterior"]), read_experience(fields["episode"]))
                return f"{mark} {float(at_stake[fields['action']][which])!r}"
        if policy is not None and "hypothesis" in fields:
            return f"{ACTION} {policy(read_hypothesis(fields['hypothesis']), read_experience(fields['episode']))}"
        posterior: Any = parse_prior(fields["posterior"])
        if "experience" in fields:
            for step in read_experience(fields["experience"]):
                posterior = updated(posterior, step)
            return f"{POSTERIOR}\n{posterior}"
        return f"{HYPOTHESIS}\n{hypothesis_text(posterior.sample(particle_rng() or np.random.default_rng()))}"

    return ScriptedChatModel(respond=respond)


_TAGGED = re.compile(r"^<(\w+)>\n(.*?)\n</\1>(?: \w+)?$", re.MULTILINE | re.DOTALL)
