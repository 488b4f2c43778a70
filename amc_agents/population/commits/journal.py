"""The journal of commit calls: each is recorded before and after it runs, and none is made twice unasked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig

from amc_agents.commits import Commit
from amc_agents.errors import AgentContractError, CommitError
from amc_agents.population.particle import Particle
from amc_agents.population.population import ParticleSystem
from amc_agents.quoting import quoted
from amc_agents.runtime.door import CallOutcome, PendingCall, as_result

RUN_AGAIN, ABORT, RAN = "run again", "abort", "ran"


async def make_call(
    system: ParticleSystem,
    particle: Particle,
    config: RunnableConfig,
    call: PendingCall,
    answers: Mapping[str, Any] | None = None,
) -> None:
    """Make a commit call of the selected particle.

    With durable points, the population is saved first, with the call recorded as one that may have run.

    Args:
        system: the population.
        particle: the selected particle.
        config: for its agent.
        call: the call.
        answers: of a human to questions that the tool asks.

    Raises:
        AgentContractError: the population cannot be saved; or LangGraph ran the node again, and it made another call.
        CommitError: the call was cut off, and may have run.
    """
    if system.durable is not None and not system.durable.journals:
        raise AgentContractError(_NO_LEASE.format(name=quoted(call.name)))
    record = Commit(call.name, dict(call.args), call.call_id, particle.steps)
    system.commits.append(record)
    system.n_attempts += 1
    if system.durable is not None and await system.durable.save(system, "commit") is None:
        system.commits.pop()
        raise AgentContractError(_NOT_JOURNALLED.format(name=quoted(call.name)))
    try:
        opened = replace(call, once=_key(system, call, record))
        await system.runner.resume(particle, config, opened=opened, answers=answers)
    finally:  # The budget may end in the same step, before or after the call.
        outcome = particle.door.outcomes.pop(call.key, None)
        if outcome is None:
            system.commits.pop()
        else:
            system.commits[-1] = _with_outcome(record, outcome)
    if outcome is not None and outcome.status == "may have run":
        raise CommitError(_CUT_OFF.format(commit=system.commits[-1])) from particle.error
    if outcome is not None:
        return
    if particle.error is None and not particle.questions:
        raise AgentContractError(_CHANGED.format(name=quoted(call.name)))


def is_uncertain(system: ParticleSystem) -> bool:
    """Whether the last commit call was cut off, by the end of the process or by its agent."""
    return bool(system.commits) and system.commits[-1].status == "may have run"


def question(system: ParticleSystem) -> Mapping[str, Any]:
    """Return the question about a call that may have run; empty if there is no such call."""
    if not is_uncertain(system):
        return {}
    commit = system.commits[-1]
    return {
        _question_id(system): {
            "question": f"The call of {quoted(commit.name)} was cut off: it may have run. Find out whether "
            f'it did, and answer {{"{RAN}": <its result>}}, "{RUN_AGAIN}" or "{ABORT}".',
            "name": commit.name,
            "args": dict(commit.args),
            "call_id": commit.call_id,
        }
    }


async def settle(
    system: ParticleSystem, particle: Particle, answers: Mapping[str, Any], config: RunnableConfig
) -> str | None:
    """Continue as a human answered about a call that may have run, and return why the answer was refused, if it was.

    Raises:
        CommitError: the answer is to abort.
    """
    answer, record = answers.get(_question_id(system)), system.commits[-1]
    if isinstance(answer, Mapping) and RAN in answer:
        call = _call_of(particle, record)
        particle.door.results[call.key] = as_result(answer[RAN], call.name, call.call_id)
        system.commits[-1] = replace(record, status="answered", result=answer[RAN])
        await system.runner.resume(particle, config)
    elif answer == RUN_AGAIN:
        system.commits.pop()
        await make_call(system, particle, config, _call_of(particle, record))
    elif answer == ABORT:
        if system.durable is not None:
            await system.durable.forget_commits()
        raise CommitError(f"the run was aborted: {record}")
    else:
        return f"expected {{'{RAN}': result}}, '{RUN_AGAIN}' or '{ABORT}', got {quoted(answer)}"
    return None


def _key(system: ParticleSystem, call: PendingCall, record: Commit) -> str:
    """Return the idempotency key of a call: the same for each attempt at it, in any process."""
    identity = [system.runner.streams.run_id, record.step, *call.key]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]


def _question_id(system: ParticleSystem) -> str:
    """Return the id of the question about the last attempt; an answer to it never counts for another attempt."""
    return f"{system.runner.streams.run_id}-{system.n_attempts}"


def _call_of(particle: Particle, record: Commit) -> PendingCall:
    """Return the call that a record describes."""
    calls = (*particle.pending, *particle.door.opened.values())
    return next(
        call for call in calls if (call.name, call.args, call.call_id) == (record.name, record.args, record.call_id)
    )


def _with_outcome(record: Commit, outcome: CallOutcome) -> Commit:
    result = outcome.result
    shown = result.content if isinstance(result, BaseMessage) else result
    return replace(record, status=outcome.status, result=shown, error=outcome.error)


_NO_LEASE = (
    "the commit call {name} was not made: the checkpointer cannot tell two callers of the thread apart "
    "(docs/durable.md lists those that can), so that both could make it. Use another checkpointer, or pass "
    "checkpointer=False"
)
_NOT_JOURNALLED = (
    "the commit call {name} was not made: the population could not be saved before it (the log says why), so that a "
    "resumed run could repeat the call. Make the agent's state storable, or pass checkpointer=False"
)
_CUT_OFF = (
    "the agent cut the commit call {commit} off, so that no other call was made. A thread with a checkpointer asks "
    "when it goes on (invoke(None, ...)); without one, find out before you start again"
)
_CHANGED = (
    "the commit call {name} was not made: LangGraph ran its node again, and the node made another call. Call commit "
    "tools from a node that does not call the model, such as a ToolNode"
)
