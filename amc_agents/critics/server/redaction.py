"""Errors of untrusted critics: what the server answered goes to the log, and the caller sees a fixed text."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from amc_agents.errors import (
    AmcError,
    BudgetExhausted,
    CheckpointError,
    ConfigurationError,
    CriticServerError,
    PromptTooLong,
    UnreadableAnswer,
)
from amc_agents.logs import log, room_logger

_log = room_logger(__name__)


@contextmanager
def redacted(name: str, *, trusted: bool) -> Iterator[None]:
    """Replace the errors of an untrusted critic by errors without its server's answer; log the original.

    Args:
        name: the server's URL, or the critic's name.
        trusted: whether the critic was named where the graph is built. False: a call named it, so its errors may
            reach a caller who is not entitled to read what the server answers. True: errors pass unchanged.
    """
    try:
        yield
    except AmcError as error:
        if trusted:
            raise
        log(_log, logging.WARNING, "critic.failed", "error of a critic that a call has named: %(text)s", text=error)
        raise _without_answer(name, error) from None


def _without_answer(name: str, error: AmcError) -> AmcError:
    if isinstance(error, ConfigurationError | BudgetExhausted):
        return error
    if isinstance(error, PromptTooLong):
        return PromptTooLong(f"the task and one round alone exceed the context of {name}")
    if isinstance(error, UnreadableAnswer):
        return UnreadableAnswer(error.values, f"{name}: some answers could not be read. {_DETAILS}")
    if isinstance(error, CheckpointError):
        return CheckpointError(
            f"{name}: its model has no checkpoint here, or the scores differ from the checkpoint. {_DETAILS}"
        )
    if isinstance(error, CriticServerError) and error.status == 401:
        return CriticServerError(name, f"it requires a key, or a different one. {_DETAILS}", error.status)
    return CriticServerError(name, f"the request failed, or the answer is not a critic's. {_DETAILS}")


_DETAILS = (
    "Details are in the log only, because a call has named this critic (no VLLM_API_KEY is sent in that case): name it "
    "where the graph is built"
)
