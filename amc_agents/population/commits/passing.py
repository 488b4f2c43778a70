"""Let the selected particle through its door: it alone acts in reality, and all slots continue it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphBubbleUp

from amc_agents.errors import BudgetExhausted, CommitError
from amc_agents.population.commits import journal
from amc_agents.population.commits.selection import select_at_door
from amc_agents.population.particle import Particle
from amc_agents.population.population import ParticleSystem
from amc_agents.population.resampling import continue_alone
from amc_agents.quoting import excerpt

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
    particle.edit, made = edit, len(system.commits) - journal.is_uncertain(system)
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
    made = len(system.commits) - journal.is_uncertain(system)
    while particle.held and particle.running:
        questions = journal.question(system) or {question.id: question.value for question in particle.questions}
        if not questions:
            await journal.make_call(system, particle, config, particle.pending[0])
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
    if journal.is_uncertain(system):
        return await journal.settle(system, particle, answers, config)
    if asking is not None:
        await journal.make_call(system, particle, config, asking, answers)
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
