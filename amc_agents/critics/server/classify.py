"""What a model server's answers must hold (the list of models, rows with an index, usage), and vLLM's `/classify`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from amc_agents.errors import CriticError, CriticServerError
from amc_agents.quoting import listed, quoted
from amc_agents.types import FloatArray
from amc_agents.usage import OPENAI_COUNTS, Usage, reported_usage

LEAST_LOGPROB = -1000.0
"""Below it there is no log-probability, but the -9999 that vLLM 0.32 writes over those of a request's neighbours."""
OVERWRITTEN = (
    "vLLM 0.32 writes -9999 over the log-probabilities of requests that run beside one with `logprob_token_ids`: give "
    "verdicts a server of their own, or use a newer vLLM"
)
"""Said of a row below `LEAST_LOGPROB`."""


class ServedModel(NamedTuple):
    """What `/v1/models` says of a model."""

    name: str
    root: str | None
    """What it was loaded from, on the server's machine."""
    limit: int | None
    """The most tokens that the server takes."""


def chosen_model(answer: Any, wanted: str | None, url: str) -> ServedModel:
    """The wanted model among those that the server offers; None: the only one.

    Raises:
        CriticServerError: it is not there, or there are several; the message lists them.
    """
    models = served_models(answer, url)
    found = [one for one in models if wanted in (one.name, None)]
    if len(found) == 1:
        return found[0]
    names = listed(sorted(one.name for one in models), 4) or "nothing"
    if wanted is None:
        raise CriticServerError(url, f"expected one model, it serves {names}: say which, ?model=NAME")
    raise CriticServerError(url, f"no model {wanted!r} on this server, it serves {names}")


def served_models(answer: Any, url: str) -> list[ServedModel]:
    """All models that the server offers. Raises `CriticServerError`."""
    cards = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(cards, list):
        raise CriticServerError(url, f"expected a list of models, got {quoted(answer)}")
    models = []
    for card in cards:
        match card:
            case {"id": str(name)}:
                root, limit = card.get("root"), card.get("max_model_len")
            case _:
                raise CriticServerError(url, f"expected a model's `id`, got {quoted(card)}")
        if limit is not None and not (type(limit) is int and limit > 0):
            raise CriticServerError(url, f"expected a number of tokens as `max_model_len`, got {quoted(card)}")
        models.append(ServedModel(name, root if isinstance(root, str) else None, limit))
    return models


def rows_of(answer: Any, name: str, n: int) -> list[dict[str, Any]]:
    """`[n]` the rows of an answer's list `name`, in the order of their `index`.

    Raises:
        ValueError: it has another number of rows, or an index is missing, wrong or there twice; the message says which.
    """
    rows = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(rows, list):
        raise ValueError(f"expected {n} rows in `{name}`, got {quoted(answer)}")
    if len(rows) != n:
        raise ValueError(f"expected {n} rows in `{name}`, got {len(rows)}: {quoted(answer)}")
    found: dict[int, dict[str, Any]] = {}
    for row in rows:
        index = row.get("index") if isinstance(row, dict) else None
        if type(index) is not int or not 0 <= index < n:
            raise ValueError(f"expected an `index` (0 to {n - 1}) in each row of `{name}`, got {quoted(row)}")
        found[index] = row
    if len(found) != n:
        raise ValueError(f"expected each `index` from 0 to {n - 1} once in `{name}`, got {listed(sorted(found))}")
    return [found[index] for index in range(n)]


def ids_as_json(ids: Sequence[int]) -> bytes:
    """Token ids as a JSON list."""
    return json.dumps(ids, separators=(",", ":")).encode()


def classify_body(model: str, prompts: Sequence[bytes]) -> bytes:
    """A request for raw scores of some prompts, each a JSON list of token ids.

    Without `use_activation: false` the server would answer their sigmoid.
    """
    return b'{"model":%b,"use_activation":false,"input":[%b]}' % (json.dumps(model).encode(), b",".join(prompts))


def scores_of(answer: Any, n: int, where: str) -> FloatArray:
    """`[n]` the scores in an answer, by their `index`; NaN is left for others to judge.

    Raises:
        CriticError: it is not one number for each prompt.
    """
    try:
        rows = rows_of(answer, "data", n)
    except ValueError as error:
        raise CriticError(f"{where}: {error}") from error
    scores = []
    for row in rows:
        match row:
            case {"probs": [int() | float() as score]} if not isinstance(score, bool):
                scores.append(float(score))
            case {"probs": [_, _, *_] as labels}:
                raise CriticError(
                    f"{where}: the model answers {len(labels)} labels for a prompt: a value model has num_labels=1"
                )
            case _:
                raise CriticError(f"{where}: expected one number in `probs`, got {quoted(row)}")
    return np.array(scores)


def usage_of(answer: Any) -> Usage:
    """Usage of one request, from the token counts that the server reports."""
    return reported_usage(answer.get("usage") if isinstance(answer, dict) else None, OPENAI_COUNTS)
