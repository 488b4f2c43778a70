"""Exceptions that the library raises on purpose.

    AmcError
    ├── ConfigurationError          a setting is wrong or missing; also a ValueError
    │   ├── CriticSpecError         a critic string cannot be parsed
    │   └── UnboundedRequest        a request cannot be reserved under a budget
    ├── BudgetExhausted             a budget does not allow a further request
    ├── WorldError                  the world is broken
    │   ├── EnvironmentStateError   step before reset, or after the end
    │   └── ForkError               the world cannot be forked faithfully
    │       └── ReplayDivergence    a replayed observation differs from the record
    ├── CriticError                 the critic failed, or its answer is invalid
    │   ├── UnreadableAnswer        a judge's answers could not be read
    │   ├── PromptTooLong           the task and a single round exceed its context length
    │   └── CriticServerError       its server is unreachable, or rejected the request
    ├── PopulationError             the particle system cannot continue
    │   ├── AllWeightsZero          every particle has weight 0
    │   ├── QuorumLost              too many particles failed
    │   ├── RunTimedOut             no particle finished within run_timeout
    │   └── ParticleFailure         a particle's failure before its run was restored
    ├── TimeLimitExceeded           a step or a critic took longer than allowed; also a TimeoutError
    ├── AgentContractError          the wrapped agent cannot be run as particles
    ├── CommitError                 a commit tool failed and may have acted
    ├── ThreadHeld                  another call runs the thread, or has taken it over
    ├── AnswerNeeded                the run waits for a human's answer
    ├── DecisionError               no candidate action is left
    ├── RoleError                   a language model in a role failed, or its answer could not be parsed
    ├── PosteriorError              a posterior is missing, damaged, or was edited concurrently
    │   └── UpdateError             an update failed or was rejected; the posterior is unchanged
    ├── ServerError                 a model server that we started did not come up, or died
    ├── CheckpointError             a saved model or dataset is invalid
    ├── StorageError                a file could not be written; also an OSError
    └── MissingExtra                an optional dependency is not installed; also an ImportError

An agent's mistake is never an exception but an observation. These exceptions report misuse, or the failure of a model,
a world, a critic or a file. Each stores its facts as attributes and builds its message from them: what was expected,
what was received, what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from amc_agents.quoting import excerpt, quoted

if TYPE_CHECKING:
    from amc_agents.types import FloatArray, Trajectory
    from amc_agents.usage import Usage


def brief_causes(causes: Sequence[BaseException]) -> str:
    """Format the first two distinct causes for a message, each in at most 110 characters."""
    different = list(dict.fromkeys(f"{type(cause).__name__}: {cause}" for cause in causes))
    more = f"; and {len(different) - 2} others" if len(different) > 2 else ""
    return "; ".join(excerpt(cause, 110) for cause in different[:2]) + more


def amount_text(amount: float) -> str:
    """Format an amount of a budget: 1,234 or 0.0051.

    >>> amount_text(1_000_000.0), amount_text(0.00512)
    ('1,000,000', '0.00512')
    """
    return f"{amount:,.0f}" if amount == int(amount) else f"{amount:,.5g}"


class AmcError(Exception):
    """Base class of the library's exceptions.

    Remedy: Catch it to handle every error of the library; the subclass and the message say what to change.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[AmcError], arguments: tuple[Any, ...], facts: Mapping[str, Any]) -> AmcError:
    error = kind.__new__(kind)
    error.args = arguments
    error.__dict__.update(facts)
    return error


class ConfigurationError(AmcError, ValueError):
    """A setting is wrong or missing.

    Remedy: Change the setting that the message names.
    """


class CriticSpecError(ConfigurationError):
    """A critic string cannot be parsed.

    Remedy: Write it as `kind:target?key=value`; docs/critics.md lists the kinds.
    """


class UnboundedRequest(ConfigurationError):
    """The cost of a request has no upper bound, or its model has no price, so a budget cannot reserve it.

    Remedy: Set `max_tokens` on the model, give `Budget(prices=...)`, or remove the limit that cannot be reserved.
    """


class BudgetExhausted(AmcError):
    """A budget does not allow a further request.

    Remedy: Give a larger `Budget`, or lower `max_tokens`, `n_particles` or the horizon.

    Args:
        limits: the limits of the budget.
        spent: what was charged before the refused request.
        needed: upper bound of the refused request; empty if time ran out.
        trajectories: the trajectory of each particle so far, in a run of particles.
        usage: usage of that run by role.
    """

    def __init__(
        self,
        limits: Mapping[str, float],
        spent: Mapping[str, float],
        needed: Mapping[str, float] | None = None,
        trajectories: Sequence[Trajectory] = (),
        usage: Mapping[str, Usage] | None = None,
    ) -> None:
        self.limits, self.spent, self.needed = dict(limits), dict(spent), dict(needed or {})
        self.trajectories, self.usage = tuple(trajectories), dict(usage or {})
        used = ", ".join(
            f"{amount_text(self.spent[name])} of {amount_text(limits[name])} {name}" for name in self.spent
        )
        needs = ", ".join(f"{amount_text(amount)} {name}" for name, amount in self.needed.items())
        steps = [len(trajectory.steps) for trajectory in trajectories]
        reached = f"; none of {len(steps)} particles had finished (most steps: {max(steps)})" if steps else ""
        super().__init__(
            f"the budget is exhausted: {used} are spent"
            + (f", and the next request may need {needs}" if needs else "")
            + f"{reached}. Give a larger Budget, or lower max_tokens, n_particles or the horizon"
        )


class WorldError(AmcError):
    """The world is broken.

    Remedy: Run `amc_agents.testing.check_environment` on the world: it names the broken promise.
    """


class EnvironmentStateError(WorldError):
    """The world was stepped before `reset` or after the end of the episode.

    Remedy: Call `reset` first, and stop stepping when a `TimeStep` is `terminated` or `truncated`.
    """


class ForkError(WorldError):
    """The world cannot be forked faithfully.

    Remedy: Implement `fork` for the world, or wrap it in `ReplayFork` if the same actions always give the same
    observations.
    """


class ReplayDivergence(ForkError):
    """A replayed action produced an observation that differs from the record.

    Remedy: Implement `fork` for the world, or remove what makes it differ: clocks, unseeded random numbers, shared
    state.

    Args:
        step: 1-based number of the diverging step (0: the first observation).
        action: the action replayed (empty for the first observation).
        expected: the recorded observation.
        actual: the replayed observation.
    """

    def __init__(self, step: int, action: str, expected: str, actual: str) -> None:
        self.step, self.action, self.expected, self.actual = step, action, expected, actual
        where = f"action {quoted(action)}" if step else "the first observation"
        super().__init__(
            f"replay diverged at step {step} ({where}): expected {quoted(expected)}, got {quoted(actual)}. "
            "The world is not deterministic given its seed and actions; implement fork() for it."
        )


class CriticError(AmcError):
    """A critic failed, or returned a wrong shape, NaN or infinity.

    Remedy: Return one finite number for each trajectory; `amc_agents.testing.check_critic` checks it. With
    `on_critic_error="uniform"`, a run continues without the critic.
    """


class UnreadableAnswer(CriticError):
    """A judge's answers about some trajectories could not be read, even when it was asked again.

    Their values are unknown: `amc` keeps the weights of these particles, LAC gives these candidates the mean of the
    others, and PNLC keeps the thought, each with a note, whatever `on_critic_error` is.

    Remedy: Add `structured=yes` to the judge's string if its server enforces JSON schemas, or use a stronger model.

    Args:
        values: `[N]` the values; NaN where an answer could not be read.
        reason: whose answers, and what they were.
    """

    def __init__(self, values: FloatArray, reason: str) -> None:
        self.values, self.reason = values, reason
        super().__init__(reason)


class PromptTooLong(CriticError):
    """The task and a single round exceed the critic's context length.

    Remedy: Use a critic with a longer context, or shorten the task and the observations.
    """


class CriticServerError(CriticError):
    """A critic's server is unreachable, or rejected the request.

    Remedy: Run `amc doctor --critic ...`, which checks that the server is reachable and serves the right model.

    Args:
        url: the URL requested.
        reason: what was received, and what to do.
        status: the HTTP status; None without a response.
    """

    def __init__(self, url: str, reason: str, status: int | None = None) -> None:
        self.url, self.reason, self.status = url, reason, status
        super().__init__(f"{url}: {reason}")


class PopulationError(AmcError):
    """The particle system cannot continue.

    Remedy: Read the subclass and its causes.
    """


class AllWeightsZero(PopulationError):
    """Every particle has weight 0, so nothing can be resampled or selected.

    Remedy: Find out why the particles failed, and check the ranges of the critic and the reward.
    """

    def __init__(self, n_particles: int, where: str) -> None:
        self.n_particles, self.where = n_particles, where
        super().__init__(
            f"all {n_particles} particles have weight 0 at {where}: each failed, or its potential is -inf. "
            "Check why the particles failed, and the ranges of the critic and the reward."
        )


class QuorumLost(PopulationError):
    """More particles failed than the quorum allows.

    Remedy: Fix what `causes` lists, or lower `quorum`.

    Args:
        alive: number of particles that have not failed.
        quorum: the smallest number of particles that the run may continue with.
        causes: the exception of each failed particle.
    """

    def __init__(self, alive: int, quorum: int, causes: Sequence[BaseException]) -> None:
        self.alive, self.quorum, self.causes = alive, quorum, tuple(causes)
        super().__init__(
            f"only {alive} particles are alive and the quorum is {quorum}. Causes: {brief_causes(causes)}. "
            "Fix the cause, or lower `quorum`; the attribute `causes` lists all of them."
        )


class RunTimedOut(PopulationError, TimeoutError):
    """The run's time limit passed before any particle finished.

    Remedy: Raise `run_timeout`, shorten the horizon, or set `step_timeout` if a single step hangs.

    Args:
        limit_s: the time limit, in seconds.
        trajectories: the trajectory of each particle so far; empty if the worlds were not created yet.
    """

    def __init__(self, limit_s: float, trajectories: Sequence[Trajectory] = ()) -> None:
        self.limit_s, self.trajectories = limit_s, tuple(trajectories)
        steps = [len(trajectory.steps) for trajectory in trajectories]
        reached = (
            f"none of {len(steps)} particles had finished (most steps: {max(steps)})"
            if steps
            else "the particles were not ready to start"
        )
        super().__init__(
            f"run_timeout={limit_s:g} s passed and {reached}. Allow more time or a shorter horizon, or set "
            "step_timeout if one step hangs"
        )


class ParticleFailure(PopulationError):
    """The failure of a particle in a process that was killed: its original error is known by name and message.

    Remedy: Look up the original error, whose name the class has.
    """

    @classmethod
    def like(cls, name: str, message: str) -> ParticleFailure:
        """Return a failure whose class has the name of the original error, as reports of causes show it."""
        kind: type[ParticleFailure] = type(name, (cls,), {})
        return kind(message)


class TimeLimitExceeded(AmcError, TimeoutError):
    """An operation exceeded its time limit and was cancelled.

    Remedy: Raise the limit that the message names, or find out what hangs.

    Args:
        what: the operation and the setting that limits it.
        limit_s: the time limit, in seconds.
    """

    def __init__(self, what: str, limit_s: float) -> None:
        self.what, self.limit_s = what, limit_s
        super().__init__(f"{what}={limit_s:g} s: raise the limit, or find out what hangs")


class AgentContractError(AmcError):
    """The wrapped agent cannot be run as particles; the message says what to declare.

    Remedy: Declare what the message asks for, such as the effect of a tool or the node that ends a step. docs/flow.md
    lists the requirements.
    """


class CommitError(AmcError):
    """A commit tool failed and may have acted, or the only particle that lived through a commit failed after it.

    Remedy: Check whether the action took place before you run it again; the message names the call.
    """


class ThreadHeld(AmcError):
    """Another call runs the thread, or has taken it over.

    Remedy: Wait for that call to end, then call again; or use another thread.

    Args:
        thread_id: the thread.
        holder: the process that runs it; None: unknown, or nobody any more.
        until: when its lease ends unless it is renewed, in seconds since 1970; None: unknown.
        lost: whether this call held the thread before.
    """

    def __init__(self, thread_id: str, holder: str | None, until: float | None, *, lost: bool = False) -> None:
        self.thread_id, self.holder, self.until, self.lost = thread_id, holder, until, lost
        ends = "" if until is None else f" (its lease ends at {_clock(until)} unless it is renewed)"
        super().__init__(
            f"the thread {quoted(thread_id)} was taken over by {holder or 'another call'}{ends}: this call stopped "
            "before any further commit call; resume the thread when that call has ended"
            if lost
            else f"the thread {quoted(thread_id)} is run by {holder or 'another call'}{ends}: one call runs a thread "
            "at a time, so wait for it to end, then call again"
        )


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


class AnswerNeeded(AmcError):
    """`run` or `arun` ended at a question to a human, so there is no `Run` yet.

    Remedy: Show the questions, and call again with `Command(resume=answer)` and the same thread.

    Args:
        questions: each question by the id of its interrupt in the agent.
    """

    def __init__(self, questions: Mapping[str, Any]) -> None:
        self.questions = dict(questions)
        shown = "; ".join(excerpt(quoted(question), 200) for question in self.questions.values())
        super().__init__(
            f"the run waits for a human's answer: {shown}. Answer with run(Command(resume=answer), config) and the "
            "same thread_id; for several questions, resume={id: answer} with the ids of get_state(config).interrupts"
        )


class DecisionError(AmcError):
    """A decision has no candidate action left; the message says why each was rejected.

    Remedy: Check the model's prompt and its limit of output tokens. The message quotes what was rejected.
    """


class RoleError(AmcError):
    """A language model in a role failed, refused, timed out, or returned an answer that could not be parsed, twice.

    Remedy: Use a stronger model for the role, or raise its `max_tokens` or time limit.

    Args:
        role: the role.
        reason: what was received, and what to do.
    """

    def __init__(self, role: str, reason: str) -> None:
        self.role, self.reason = role, reason
        super().__init__(reason)


class PosteriorError(AmcError):
    """A posterior is missing or damaged, or its owner edited it concurrently.

    Remedy: Read the posterior with `amc posterior show`, and restore an earlier version with `amc posterior rollback`.
    """


class UpdateError(PosteriorError):
    """An update failed or was rejected. The posterior is unchanged, and the evidence is kept as pending.

    Remedy: Fix the cause, then call `apply_pending`.

    Args:
        number: number of the version that is still the head.
        episode: the episode that the evidence comes from.
        reason: why the update failed.
    """

    def __init__(self, number: int, episode: str, reason: str) -> None:
        self.number, self.episode, self.reason = number, episode, reason
        super().__init__(
            f"the update of episode {quoted(episode)} failed ({reason}). The posterior stays at version {number}, and "
            "the observation is kept as pending: fix the cause, then call apply_pending."
        )


class ServerError(AmcError):
    """A model server that the library started did not come up, or died.

    Remedy: Read the end of the server's log in the message, and correct what it reports.

    Args:
        url: the URL of the server.
        reason: what happened, and what to do.
    """

    def __init__(self, url: str, reason: str) -> None:
        self.url, self.reason = url, reason
        super().__init__(f"{url}: {reason}")


class CheckpointError(AmcError):
    """A saved model, adapter or dataset is invalid.

    Remedy: Train or export it again, or correct its path; the message names the file and what is wrong with it.
    """


class StorageError(AmcError, OSError):
    """A file could not be written.

    Remedy: Free space, correct the permissions, or choose another folder.

    Args:
        path: the file or folder.
        reason: the cause and the remedy.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"cannot write {path}: {reason}")


class MissingExtra(AmcError, ImportError):
    """An optional dependency is not installed.

    Remedy: Run the `pip install` command in the message.

    Args:
        package: the import that failed.
        extra: the extra that installs it.
    """

    def __init__(self, package: str, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(f"{quoted(package)} is required and not installed: pip install 'amc-agents[{extra}]'")
