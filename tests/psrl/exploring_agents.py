"""An agent with a slot machine and exact roles. As a script: a process that is killed during its run.

python -m tests.psrl.exploring_agents STORE
"""

from __future__ import annotations

import json
import os
import re
import sys
from itertools import count

import numpy as np
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.store.sqlite import SqliteStore

from amc_agents import PosteriorSampling
from amc_agents.psrl.posterior.priors import Beta, Independent
from amc_agents.testing.exact_roles import exact_roles_model
from amc_agents.testing.scripted import ScriptedChatModel

ARMS = ("B", "I", "O", "R", "H")
RULES = f"There are five slot machine arms: {', '.join(ARMS)}. Each pays 1 or 0. Earn as much as you can."
PRIOR = Independent({f"mean of arm {arm}": Beta() for arm in ARMS})
NAMESPACE = ("tests", "bandit")
GIVEN = {"messages": [("user", "Earn.")]}


def exact_roles():
    """A chat model that plays sampler and updater exactly."""

    def counted(posterior, step):
        arm, paid = re.fullmatch(r"Arm (.) paid ([01])\.", step.observation).groups()
        return posterior.observed(f"mean of arm {arm}", int(paid))

    return exact_roles_model(counted)


def machine(at_pull=lambda number: None):
    """The tool and the arms pulled. Every other pull pays 1; `at_pull` may raise an error."""
    pulled = []

    @tool
    def pull(arm: str) -> str:
        """Pull an arm."""
        at_pull(len(pulled) + 1)
        pulled.append(arm)
        return f"Arm {arm} paid {len(pulled) % 2}."

    return pull, pulled


def player(n_pulls=2, prompts=None):
    """Pulls the best arm of the hypothesis in its system prompt, then says so."""
    numbers = count()

    def respond(messages):
        system = messages[0].text if isinstance(messages[0], SystemMessage) else ""
        if prompts is not None:
            prompts.append(system)
        hypothesis = re.search(r"<hypothesis>\n(.*)\n</hypothesis>", system, re.DOTALL)
        last = max(i for i, message in enumerate(messages) if message.type == "human")
        if sum(isinstance(message, ToolMessage) for message in messages[last:]) >= n_pulls:
            return "Enough."
        means = json.loads(hypothesis[1])
        best = max(means, key=means.get).removeprefix("mean of arm ")
        return AIMessage("", tool_calls=[{"name": "pull", "args": {"arm": best}, "id": f"call-{next(numbers)}"}])

    return ScriptedChatModel(respond=respond)


def an_agent(store, *, pull=None, model=None, roles=None, agent=None, **options):
    """`create_agent` with the middleware."""
    settings = {"prior": PRIOR, "namespace": NAMESPACE, "world": RULES, "seed": 3, **options}
    middleware = PosteriorSampling(roles or exact_roles(), **settings)
    return create_agent(
        model or player(), [pull or machine()[0]], middleware=[middleware], store=store, **(agent or {})
    )


def counts(posterior):
    """Numbers of payments of 1 and 0 in a posterior's text."""
    return np.array(re.findall(r"Beta\((\d+), (\d+)\)", posterior), dtype=int).sum(axis=0) - len(ARMS)


if __name__ == "__main__":
    with SqliteStore.from_conn_string(sys.argv[1]) as kept:
        kept.setup()
        # The second pull kills the process: nothing is closed or reported.
        an_agent(kept, pull=machine(lambda number: number == 2 and os._exit(9))[0]).invoke(GIVEN)
