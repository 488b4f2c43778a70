"""Commit tools and questions to a human: what particles wait for, and what happens once (docs/amc.md).

`amc_agents.runtime.door` holds the particles. When no particle can go on without it, one of them is selected and let
through its door: it alone acts in reality, and all slots continue it. Each commit call is recorded before and after it
runs, and none is made twice unasked.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig

from amc_agents import smc
from amc_agents.commits import Commit
from amc_agents.errors import AgentContractError, BudgetExhausted, CommitError
from amc_agents.population.conclusion import select_index
from amc_agents.population.feature import Feature
from amc_agents.population.particle import Particle
from amc_agents.population.system import ParticleSystem, continue_from, dropped
from amc_agents.quoting import excerpt, quoted
from amc_agents.run import Run
from amc_agents.runtime.door import CallOutcome, PendingCall, as_result
from amc_agents.settings import Select

Answers = Mapping[str, Any]
"""Answers of a human by the ids of the questions."""
RUN_AGAIN, ABORT, RAN = "run again", "abort", "ran"


class Durable(Protocol):
    """Makes a population survive its process."""

    @property
    def journals(self) -> bool:
        """Whether a commit call can be journaled so that no other caller repeats it."""
        ...

    async def save(self, system: ParticleSystem, then: str) -> bool:
        """Save the population, and return whether it could be saved."""
        ...

    async def forget_commits(self) -> None:
        """Let the thread's next input start a new run, although this one made commit calls."""
        ...


class Passed(NamedTuple):
    """What follows a visit of the selected particle's door."""

    then: str
    """The next verb."""
    resumes_at: str
    """The verb with which a restored population goes on."""
    questions: Mapping[str, Any] | None = None
    """Questions to a human by id, for the node "ask"."""


class Commits(Feature):
    """Lets one particle at a time act in reality."""

    name = "commits"

    def __init__(self) -> None:
        self.calls: list[Commit] = []
        """The calls of commit tools so far."""
        self.n_attempts = 0
        """Number of attempts to make such a call, repeated ones included."""
        self._selected: int | None = None
        """The slot whose waiting particle goes on alone."""
        self._chosen: Particle | None = None
        """The finished particle that was preferred to all waiting ones, and ends the run."""
        self._edit: Mapping[str, Any] | None = None
        """What else the human's command says, for the agent that asked."""

    async def next(self, system: ParticleSystem, then: str) -> str | None:
        """Go to the door if no particle can go on without it."""
        return "commit" if then != "conclude" and system.at_door else None

    def answer(self, system: ParticleSystem) -> Particle | None:
        """Return the finished particle that was preferred to all waiting ones."""
        return self._chosen

    def hides_evidence(self, system: ParticleSystem) -> bool:
        """Whether the run ended before what its particles waited for."""
        return self._chosen is not None

    async def on_end(self, system: ParticleSystem, run: Run, winner: Particle) -> Run:
        """Report the calls."""
        return replace(run, commits=tuple(self.calls))

    def on_error(self, system: ParticleSystem, error: Exception) -> None:
        """Name the calls so far."""
        if self.calls:
            error.add_note("Before this error, these commit calls were made: " + "; ".join(map(str, self.calls)))

    def record(self, system: ParticleSystem) -> dict[str, Any]:
        """Return the calls, and who acts."""
        calls = [tuple(getattr(call, field.name) for field in fields(call)) for call in self.calls]
        return {"calls": calls, "n_attempts": self.n_attempts, "selected": self._selected}

    def restore(self, system: ParticleSystem, recorded: Mapping[str, Any]) -> None:
        """Take over the calls, and who acts."""
        self.calls = [Commit(*call) for call in recorded["calls"]]
        self.n_attempts, self._selected = recorded["n_attempts"], recorded["selected"]

    def end_at_door(self, system: ParticleSystem) -> None:
        """Let the particle that would act be the answer: nothing is committed, and nobody is asked."""
        self._chosen = select_at_door(system)

    def acting(self, system: ParticleSystem) -> Particle:
        """Return the particle that acts, or asks."""
        assert self._selected is not None
        return system.particles[self._selected]

    async def pass_door(
        self,
        system: ParticleSystem,
        config: RunnableConfig,
        answers: Answers | None,
        edit: Mapping[str, Any] | None = None,
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
            AgentContractError: the agent's calls changed when LangGraph ran its nodes again.
        """
        if self._selected is None:
            chosen = select_at_door(system)
            if not chosen.running:
                self._end_with(system, chosen)
                return Passed("conclude", "conclude")
            self._selected = next(slot for slot, particle in enumerate(system.particles) if particle is chosen)
        slot = self._selected
        particle = system.particles[slot]
        self._edit, made = edit, self.n_made
        try:
            with system.features.only(particle):
                questions = await self._act(system, particle, config, answers)
        except BudgetExhausted:
            if len(self.calls) > made:
                raise  # No particle that has ended lived through the call.
            return Passed("conclude", "conclude")
        if questions is not None:
            return Passed("ask", "commit", questions)
        if particle.error is not None:
            # It failed before anything happened: the others can still act.
            self._selected = None
            return Passed("weigh", "weigh")
        await self.continue_alone(system, slot)
        return Passed("propagate", "propagate")

    async def _act(
        self, system: ParticleSystem, particle: Particle, config: RunnableConfig, answers: Answers | None
    ) -> Mapping[str, Any] | None:
        """Run the selected particle to the end of its superstep, and return the questions that stop it, if any."""
        made = self.n_made
        while particle.held and particle.running:
            questions = self.question(system) or {asked.id: asked.value for asked in particle.past.questions}
            if not questions:
                await self.make_call(system, particle, config, particle.pending[0])
            elif not questions.keys() <= (answers or {}).keys():
                return questions
            else:
                refusal = await self._answer(system, particle, config, answers or {})
                if refusal is not None:
                    return {name: _asked_again(question, refusal) for name, question in questions.items()}
                answers = None
        if particle.error is not None and len(self.calls) > made:
            calls = "; ".join(map(str, self.calls[made:]))
            raise CommitError(_FAILED.format(calls=calls, error=particle.error)) from particle.error
        if len(self.calls) > made:
            ran = [{"name": commit.name, "args": commit.args, "result": commit.result} for commit in self.calls[made:]]
            system.emit("amc.commit", step=particle.steps, particle=particle.index, calls=ran)
        return None

    async def _answer(
        self, system: ParticleSystem, particle: Particle, config: RunnableConfig, answers: Answers
    ) -> str | None:
        """Resume the selected particle with the answers to its questions, and return why they were refused, if so."""
        asking = particle.door.asking
        if self.is_uncertain:
            return await self.settle(system, particle, answers, config)
        if asking is not None:
            await self.make_call(system, particle, config, asking, answers)
            return None
        # The node that asked may refuse the answer by an error: the question is then asked again, of a spare particle.
        assert self._selected is not None
        spare, kept = await system.runner.fork(particle, particle.index), particle
        try:
            await system.runner.resume(particle, config, answers=answers, edit=self._edit)
            if particle.error is not None:
                kept = system.particles[self._selected] = spare
        finally:
            await system.runner.discard(spare if kept is particle else particle)
        return None if particle.error is None else f"{type(particle.error).__name__}: {excerpt(str(particle.error))}"

    def _end_with(self, system: ParticleSystem, chosen: Particle) -> None:
        waiting = sum(particle.running for particle in system.particles)
        self._chosen = chosen
        system.note(
            f"a finished trajectory was preferred to what {waiting} particles waited for: their calls were not made, "
            "and log Z is not known"
        )

    async def continue_alone(self, system: ParticleSystem, slot: int) -> None:
        """Continue all slots from one particle, and clear all others: they did not live through its past.

        The weights start again, conditional on this past (`smc.restart`).
        """
        particle = system.particles[slot]
        cleared = [retired.particle for retired in system.retired]
        if system.archive is not None and all(system.archive is not other for other in system.everyone):
            cleared.append(system.archive)
        system.retired, system.archive = [], None
        ancestors = np.full(len(system.particles), slot)
        gone = dropped(system, ancestors, ())
        await continue_from(system, ancestors, [])
        await asyncio.gather(*(system.runner.discard(other) for other in cleared))
        base = (
            particle.return_ / system.target.beta
            if system.settings.rewards_observed and system.target.beta is not None
            else 0.0
        )
        system.weights = smc.restart(len(system.particles), base)
        system.values, system.known = system.values[ancestors], system.known[ancestors]
        system.step = particle.steps
        self._selected = None
        system.history[-1] = replace(system.history[-1], ancestors=ancestors, selected=slot, dropped=gone)

    # The journal

    @property
    def is_uncertain(self) -> bool:
        """Whether the last commit call was cut off, by the end of the process or by its agent."""
        return bool(self.calls) and self.calls[-1].status == "may have run"

    @property
    def n_made(self) -> int:
        """Number of the commit calls whose end is known."""
        return len(self.calls) - self.is_uncertain

    async def make_call(
        self,
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
            AgentContractError: the population cannot be saved, or the node makes another call when it is run again.
            CommitError: the call was cut off, and may have run.
        """
        durable: Durable | None = system.features.named("durable")
        if durable is not None and not durable.journals:
            raise AgentContractError(_NO_LEASE.format(name=quoted(call.name)))
        record = Commit(call.name, dict(call.args), call.call_id, particle.steps)
        self.calls.append(record)
        self.n_attempts += 1
        if durable is not None and not await durable.save(system, "commit"):
            self.calls.pop()
            raise AgentContractError(_NOT_JOURNALLED.format(name=quoted(call.name)))
        try:
            opened = replace(call, once=self._key(system, call, record))
            await system.runner.resume(particle, config, opened=opened, answers=answers, edit=self._edit)
        finally:  # The budget may end in the same step, before or after the call.
            outcome = particle.door.outcomes.pop(call.key, None)
            if outcome is None:
                self.calls.pop()
            else:
                self.calls[-1] = _with_outcome(record, outcome)
        if outcome is not None and outcome.status == "may have run":
            raise CommitError(_CUT_OFF.format(commit=self.calls[-1])) from particle.error
        if outcome is not None:
            return
        if particle.error is None and not particle.past.questions:
            raise AgentContractError(_CHANGED.format(name=quoted(call.name)))

    def question(self, system: ParticleSystem) -> Mapping[str, Any]:
        """Return the question about a call that may have run; empty if there is no such call."""
        if not self.is_uncertain:
            return {}
        commit = self.calls[-1]
        return {
            self._question_id(system): {
                "question": f"The call of {quoted(commit.name)} was cut off: it may have run. Find out whether "
                f'it did, and answer {{"{RAN}": <its result>}}, "{RUN_AGAIN}" or "{ABORT}".',
                "name": commit.name,
                "args": dict(commit.args),
                "call_id": commit.call_id,
            }
        }

    async def settle(
        self, system: ParticleSystem, particle: Particle, answers: Mapping[str, Any], config: RunnableConfig
    ) -> str | None:
        """Continue as a human answered about a call that may have run; return why the answer was refused, if it was.

        Raises:
            CommitError: the answer is to abort.
        """
        answer, record = answers.get(self._question_id(system)), self.calls[-1]
        if isinstance(answer, Mapping) and RAN in answer:
            call = _call_of(particle, record)
            particle.door.results[call.key] = as_result(answer[RAN], call.name, call.call_id)
            self.calls[-1] = replace(record, status="answered", result=answer[RAN])
            await system.runner.resume(particle, config)
        elif answer == RUN_AGAIN:
            self.calls.pop()
            await self.make_call(system, particle, config, _call_of(particle, record))
        elif answer == ABORT:
            durable: Durable | None = system.features.named("durable")
            if durable is not None:
                await durable.forget_commits()
            raise CommitError(f"the run was aborted: {record}")
        else:
            return f"expected {{'{RAN}': result}}, '{RUN_AGAIN}' or '{ABORT}', got {quoted(answer)}"
        return None

    def _key(self, system: ParticleSystem, call: PendingCall, record: Commit) -> str:
        """Return the idempotency key of a call: the same for each attempt at it, in any process."""
        identity = [system.outlet.run_id, record.step, *call.key]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]

    def _question_id(self, system: ParticleSystem) -> str:
        """Return the id of the question about the last attempt; an answer to it never counts for another attempt."""
        return f"{system.outlet.run_id}-{self.n_attempts}"


def select_at_door(system: ParticleSystem) -> Particle:
    """Return the particle with the largest potential; a finished one wins if none of the waiting promises more.

    `select="weight"` and `"sample"` apply here too. `"return"` does not, because a waiting particle has not earned its
    return yet: what counts is the return so far plus the critic's prediction.
    """
    pick: Select = "value" if system.pick == "return" else system.pick
    population = system.population
    index = select_index(system.rng, population, pick)
    winner, archived = system.everyone[index], system.archive
    if system.settings.pick == "return" and archived is not None and archived.return_ > population.values[index]:
        return archived
    return winner


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


def _asked_again(question: Any, refusal: str) -> Any:
    """Return a question with the reason for which the answer to it was refused."""
    if isinstance(question, Mapping):
        return {**question, "refused": refusal}
    if isinstance(question, str):
        return f"{question}\n(The answer was refused: {refusal})"
    return {"question": question, "refused": refusal}


_FAILED = "the particle that made the commit calls {calls} failed, and it alone lived through them: {error}"
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
