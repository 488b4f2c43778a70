"""Critics that a call has named, who may be anybody's: asked more cautiously, and less is told of what they answer."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from amc_agents.errors import AmcError, CheckpointError, ConfigurationError, CriticServerError, PromptTooLong

_log = logging.getLogger(__name__)
_from_outside: ContextVar[bool] = ContextVar("amc_from_outside", default=False)


@contextmanager
def named_from_outside() -> Iterator[None]:
    """Critics made within were named by a call."""
    token = _from_outside.set(True)
    try:
        yield
    finally:
        _from_outside.reset(token)


def named_by_call() -> bool:
    """Whether the critic that is being made was named by a call."""
    return _from_outside.get()


@contextmanager
def discreet(who: str, by_call: bool) -> Iterator[None]:
    """Where a call has named a critic, an error within tells nothing that its server answered; the log has it all.

    Args:
        who: the server's address, or the critic's name.
        by_call: whether a call has named it; False: errors go through as they are.
    """
    try:
        yield
    except AmcError as error:
        if not by_call:
            raise
        _log.warning("a critic that a call has named: %s", error)
        raise _without_answer(who, error) from None


def _without_answer(who: str, error: AmcError) -> AmcError:
    if isinstance(error, ConfigurationError):
        return error
    if isinstance(error, PromptTooLong):
        return PromptTooLong(f"the task and one round alone are longer than {who} reads")
    if isinstance(error, CheckpointError):
        return CheckpointError(
            f"{who}: its model has no checkpoint that was found here, or does not answer as that says. {_NOT_TOLD}"
        )
    if isinstance(error, CriticServerError) and error.status == 401:
        return CriticServerError(who, f"it wants another key, or one at all. {_NOT_TOLD}", error.status)
    return CriticServerError(who, f"it could not be asked, or did not answer as a critic. {_NOT_TOLD}")


_NOT_TOLD = (
    "More stands in the log alone, since a call has named it (no VLLM_API_KEY is sent there then): name it where the "
    "graph is built"
)
