"""Commit tools and questions to a human: what particles wait for, and what happens once (docs/amc.md)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphBubbleUp

from amc_agents.commits import Commit
from amc_agents.errors import AgentContractError, BudgetExhausted, CommitError
from amc_agents.population.conclusion import population_of, select_index
from amc_agents.population.particle import Particle
from amc_agents.population.resampling import continue_alone
from amc_agents.population.system import ParticleSystem
from amc_agents.quoting import excerpt, quoted
from amc_agents.runtime.door import CallOutcome, PendingCall, as_result
from amc_agents.settings import Select

Answers = Mapping[str, Any]
"""Answers of a human by the ids of the questions."""


class Passed(NamedTuple):
    """What follows a visit of the selected particle's door."""

    then: str
    """The next node of the graph."""
    questions: Mapping[str, Any] | None = None
    """Questions to a human by id, for the node "ask"."""

    @property
    def resumes_at(self) -> str:
        """The node at which a restored population goes on."""
        return "commit" if self.then == "ask" else self.then


async def pass_door(
    system: ParticleSystem, config: RunnableConfig, answers: Answers | None, edit: Mapping[str, Any] | None = None
) -> Passed:
    """Select a particle, run its commit calls once and in order, and continue it in all slots.

    A finished particle that is selected ends the run, and nothing is committed. The run stops for a question to a
    human, and for a commit call that may have run before the process ended.

    Args:
        system: its particles wait, have ended, or have failed.
        config: for the agent.
        answers: to the questions that the previous call returned; None: it returned none.
        edit: `update` and `goto` of the human's command, for the agent that asked.

    Raises:
        CommitError: a commit tool failed, or its particle failed after it, or a human aborted.
        AgentContractError: the agent's calls changed when LangGraph ran its nodes again, or it asks a human and the run
            cannot wait.
    """
    if system.selected is None:
        chosen = select_at_door(system)
        if not chosen.running:
            _end_with(system, chosen)
            return Passed("finalize")
        system.selected = next(slot for slot, particle in enumerate(system.particles) if particle is chosen)
    slot = system.selected
    particle = system.particles[slot]
    particle.edit, made = edit, len(system.commits) - is_uncertain(system)
    try:
        with nullcontext() if system.budget is None else system.budget.alone(particle):
            questions = await _act(system, particle, config, answers)
    except BudgetExhausted:
        if len(system.commits) > made:
            raise  # No particle that has ended lived through the call.
        return Passed("finalize")
    if questions is not None:
        return Passed("ask", questions)
    if particle.error is not None:
        # It failed before anything happened: the others can still act.
        system.selected = None
        return Passed("weigh")
    await continue_alone(system, slot)
    return Passed("propagate")


@contextmanager
def naming_commits(system: ParticleSystem) -> Iterator[None]:
    """Add the commit calls so far to an error that ends the run."""
    try:
        yield
    except GraphBubbleUp:
        raise
    except Exception as error:
        if system.commits:
            error.add_note("Before this error, these commit calls were made: " + "; ".join(map(str, system.commits)))
        raise


async def _act(
    system: ParticleSystem, particle: Particle, config: RunnableConfig, answers: Answers | None
) -> Mapping[str, Any] | None:
    """Run the selected particle to the end of its superstep, and return the questions that stop it, if any."""
    made = len(system.commits) - is_uncertain(system)
    while particle.held and particle.running:
        questions = question(system) or {asked.id: asked.value for asked in particle.questions}
        if not questions:
            await make_call(system, particle, config, particle.pending[0])
        elif not questions.keys() <= (answers or {}).keys():
            return questions
        else:
            refusal = await _answer(system, particle, config, answers or {})
            if refusal is not None:
                return {name: _asked_again(question, refusal) for name, question in questions.items()}
            answers = None
    if particle.error is not None and len(system.commits) > made:
        calls = "; ".join(map(str, system.commits[made:]))
        raise CommitError(_FAILED.format(calls=calls, error=particle.error)) from particle.error
    if len(system.commits) > made:
        ran = [{"name": commit.name, "args": commit.args, "result": commit.result} for commit in system.commits[made:]]
        system.emit({"type": "amc.commit", "step": particle.steps, "particle": particle.index, "calls": ran})
    return None


async def _answer(system: ParticleSystem, particle: Particle, config: RunnableConfig, answers: Answers) -> str | None:
    """Resume the selected particle with the answers to its questions, and return why they were refused, if so."""
    asking = particle.door.asking
    if is_uncertain(system):
        return await settle(system, particle, answers, config)
    if asking is not None:
        await make_call(system, particle, config, asking, answers)
        return None
    # The node that asked may refuse the answer by an error: the question is then asked again, of a particle as it was.
    assert system.selected is not None
    spare, kept = await system.runner.fork(particle, particle.index), particle
    try:
        await system.runner.resume(particle, config, answers=answers)
        if particle.error is not None:
            kept = system.particles[system.selected] = spare
    finally:
        await system.runner.discard(spare if kept is particle else particle)
    return None if particle.error is None else f"{type(particle.error).__name__}: {excerpt(str(particle.error))}"


def _asked_again(question: Any, refusal: str) -> Any:
    """Return a question with the reason for which the answer to it was refused."""
    if isinstance(question, Mapping):
        return {**question, "refused": refusal}
    if isinstance(question, str):
        return f"{question}\n(The answer was refused: {refusal})"
    return {"question": question, "refused": refusal}


def _end_with(system: ParticleSystem, chosen: Particle) -> None:
    waiting = sum(particle.running for particle in system.particles)
    system.answer = chosen
    system.notes.append(
        f"a finished trajectory was preferred to what {waiting} particles waited for: their calls were not made, and "
        "log Z is not known"
    )


_FAILED = "the particle that made the commit calls {calls} failed, and it alone lived through them: {error}"
CANNOT_ASK = (
    "the agent asked for human input ({}), but the run cannot wait for the answer: give amc() a checkpointer, "
    "and call it with a thread_id, worlds that can be saved (docs/amc.md) and another durability than 'exit', or ask "
    "in the graph around amc()"
)


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


def select_at_door(system: ParticleSystem) -> Particle:
    """Return the particle with the largest potential; a finished one wins if none of the waiting promises more.

    `select="weight"` and `"sample"` apply here too. `"return"` does not, because a waiting particle has not earned its
    return yet: what counts is the return so far plus the critic's prediction.
    """
    pick: Select = "value" if system.pick == "return" else system.pick
    population = population_of(system)
    index = select_index(system.rng, population, pick)
    winner, archived = system.everyone[index], system.archive
    if system.settings.pick == "return" and archived is not None and archived.return_ > population.values[index]:
        return archived
    return winner
