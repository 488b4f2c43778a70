"""How likely a policy is to write given texts: whole-string log-likelihoods, read by vLLM's `prompt_logprobs`.

The chat template is the server's own (`/tokenize`), and the ids of the dialogue and of each text go to
`/v1/completions`. What the server reports are log-probabilities at temperature 1. At another temperature T

    log p_T(x) = l_x / T - log sum_v exp(l_v / T)

needs the whole vocabulary. Of the `top` likeliest tokens the sum is known, and for T < 1 the rest of it is bounded:
its tokens have the missing mass m together and at most p_k each, so they add between 0 and m p_k^(1/T - 1). A text
whose bounds are further apart than the tolerance is refused; so is T > 1, unless the server gives all tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from amc_agents.concurrency.once import Once
from amc_agents.critics.server.classify import LEAST_LOGPROB, OVERWRITTEN, chosen_model, rows_of, usage_of
from amc_agents.critics.server.http import ModelServer
from amc_agents.errors import ConfigurationError, CriticError, CriticServerError
from amc_agents.quoting import quoted
from amc_agents.types import FloatArray
from amc_agents.usage import Usage, record

Messages = Sequence[Mapping[str, Any]]
"""A dialogue, each message with `role` and `content`, as chat APIs take it."""


class Text(NamedTuple):
    """A text of the assistant's, in two parts."""

    given: str
    """What it begins with, which is not scored; may be empty."""
    scored: str


class TextScorer(Protocol):
    """Scores texts by the policy."""

    async def log_likelihoods(self, messages: Messages, texts: Sequence[Text], temperature: float) -> FloatArray:
        """`[N]` log-probability of what is scored of each text, the end token included, after the dialogue."""
        ...


class Written(NamedTuple):
    """A text as tokens."""

    ids: tuple[int, ...]
    """All that follows the dialogue, the end token last."""
    start: int
    """The first token that is scored."""


def written(texts: Sequence[Text], ids: Mapping[str, Sequence[int]], end: int) -> list[Written]:
    """The tokens of each text, and from where they are scored.

    Texts of one `given` are scored from the same token on: the last that all of them, and `given` itself, share.

    Args:
        texts: what is scored.
        ids: token ids of every whole text and of every `given`.
        end: the token that ends an answer.
    """
    whole = [tuple(ids[text.given + text.scored]) for text in texts]
    starts: dict[str, int] = {}
    for text, tokens in zip(texts, whole, strict=True):
        shared = _common(ids[text.given], tokens) if text.given else 0
        starts[text.given] = min(shared, starts.get(text.given, shared))
    return [Written((*tokens, end), starts[text.given]) for text, tokens in zip(texts, whole, strict=True)]


def check_temperature(temperature: float) -> None:
    """Refuse what has no likelihoods. Raises `ConfigurationError`."""
    if not (math.isfinite(temperature) and temperature > 0):
        raise ConfigurationError(
            f"likelihoods are those of sampling, at a temperature above 0, got {temperature:g}: at 0 the policy has "
            'one answer. Use prior="frequency", or give the temperature of the samples'
        )


class CompletionsScorer:
    """Scores texts by a model on a vLLM server, all of a call in one request (more above `max_batch`).

    Each text is computed with its whole dialogue: vLLM reads nothing from its prefix cache for `prompt_logprobs`.

    Args:
        server: where to ask.
        model: its name; None: the only one that the server has.
        top: tokens whose log-probabilities are asked for at temperatures other than 1: up to the server's
            `--max-logprobs` (20 as it comes), or -1 for all of them, where it allows that (`--max-logprobs -1`).
        tolerance: how far apart the bounds of a text's log-likelihood may be, where not all tokens are known.
        end_token: id of the token that ends an answer; None: it is found by the chat template.
        template: further fields for the template, as the policy's own requests have them: `tools`,
            `chat_template_kwargs`.
        max_batch: the most texts of one request.
    """

    def __init__(
        self,
        server: ModelServer,
        *,
        model: str | None = None,
        top: int = 20,
        tolerance: float = 0.01,
        end_token: int | None = None,
        template: Mapping[str, Any] | None = None,
        max_batch: int = 256,
    ) -> None:
        if top != -1 and top < 1:
            raise ConfigurationError(f"top is a number of tokens, or -1 for all, got {top}")
        self.usage = Usage()
        self._server, self._wanted, self._top, self._tolerance = server, model, top, tolerance
        self._end, self._template, self._max_batch = end_token, dict(template or {}), max_batch
        self._model = Once(self._find_model)
        self._known: dict[str, tuple[int, ...]] = {}

    async def log_likelihoods(self, messages: Messages, texts: Sequence[Text], temperature: float) -> FloatArray:
        """`[N]` log-probability of what is scored of each text, the end token included, after the dialogue.

        Raises:
            ConfigurationError: the temperature is 0.
            CriticError: the answer makes no sense, or is too little for this temperature.
            CriticServerError: the server could not be asked.
        """
        check_temperature(temperature)
        if temperature > 1 and self._top != -1:
            raise CriticError(
                f"at temperature {temperature:g} the probability of a text depends on all tokens, and the {self._top} "
                "likeliest do not bound it: sample at temperature 1 or below, or start the server with "
                "--max-logprobs -1 and give top=-1"
            )
        if not texts:
            return np.zeros(0)
        model = await self._model.get()
        prompt, end = await self._dialogue(model, messages)
        ids = await self._ids(model, {part for text in texts for part in (text.given, text.given + text.scored)})
        rows = written(texts, ids, end)
        parts = [rows[at : at + self._max_batch] for at in range(0, len(rows), self._max_batch)]
        bodies = [
            {
                "model": model,
                "prompt": [[*prompt, *row.ids] for row in part],
                "max_tokens": 1,
                "temperature": 1.0,
                "prompt_logprobs": 0 if temperature == 1 else self._top,
            }
            for part in parts
        ]
        answers = await self._server.post(_PATH, bodies)
        self._count(model, answers)
        found: list[float] = []
        for part, answer in zip(parts, answers, strict=True):
            for row, places in zip(part, self._places(answer, len(part)), strict=True):
                tokens, at = row.ids[row.start :], len(prompt) + row.start
                if len(places) != len(prompt) + len(row.ids):
                    raise self._unexpected(f"expected {len(prompt) + len(row.ids)} prompt_logprobs, got {len(places)}")
                found.append(self._sum(zip(tokens, places[at:], strict=True), temperature))
        return np.array(found)

    def _sum(self, places: Iterable[tuple[int, Any]], temperature: float) -> float:
        """The log-likelihood of some tokens; in the middle of its bounds, where there are any."""
        most = least = 0.0
        for token, place in places:
            try:
                own = _logprob(place[str(token)])
                if temperature == 1:
                    most, least = most + own, least + own
                    continue
                ranked = [(int(one["rank"]), _logprob(one)) for one in place.values()]
            except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
                raise self._unexpected(f"no log-probability of token {token} in {quoted(place)}: {error}") from error
            known = np.array([logprob for _, logprob in ranked])
            total = float(np.exp(known / temperature).sum())
            rest = 0.0
            if self._top != -1:
                missing = max(0.0, 1.0 - float(np.exp(known).sum()))
                last = min(logprob for rank, logprob in ranked if rank <= self._top)
                rest = missing * math.exp(last * (1 / temperature - 1))
            most += own / temperature - math.log(total)
            least += own / temperature - math.log(total + rest)
        if most - least > self._tolerance:
            raise CriticError(
                f"at temperature {temperature:g} a text's log-likelihood is only known to lie between {least:.4f} and "
                f"{most:.4f} by the {self._top} likeliest tokens, and the tolerance is {self._tolerance:g}: sample at "
                "temperature 1, where it is exact, or give a larger top= (the server's --max-logprobs) or tolerance="
            )
        return (most + least) / 2

    async def _dialogue(self, model: str, messages: Messages) -> tuple[tuple[int, ...], int]:
        """Token ids up to where the assistant speaks, and the token that ends what it says."""
        asked: list[dict[str, Any]] = [{"messages": list(messages), "add_generation_prompt": True}]
        if self._end is None:
            answered = [*messages, {"role": "assistant", "content": _PROBE}]
            asked += [{"messages": answered, "add_generation_prompt": False}, _plain(_PROBE)]
        prompt, *found = await self._tokenized(model, asked)
        if self._end is None:
            whole, probe = found
            before = len(prompt) + len(probe)
            if whole[:before] != prompt + probe or len(whole) == before:
                raise CriticError(
                    f"{self._server.base_url}: the chat template writes an answer in another way than the model does, "
                    "so the token that ends it could not be found: say which it is, end_token="
                )
            self._end = whole[before]
        return prompt, self._end

    async def _ids(self, model: str, texts: Iterable[str]) -> Mapping[str, tuple[int, ...]]:
        known = self._known
        new = [text for text in texts if text not in known]
        found = await self._tokenized(model, [_plain(text) for text in new])
        if len(known) > _REMEMBERED:
            known = self._known = {text: known[text] for text in texts if text in known}
        known.update(zip(new, found, strict=True))
        return known

    async def _tokenized(self, model: str, asked: Sequence[Mapping[str, Any]]) -> list[tuple[int, ...]]:
        bodies = [{"model": model, **one, **(self._template if "messages" in one else {})} for one in asked]
        answers = await self._server.post("/tokenize", bodies)
        try:
            return [tuple(map(int, answer["tokens"])) for answer in answers]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise self._unexpected(f"/tokenize: expected tokens, got {quoted(answers)}") from error

    async def _find_model(self) -> str:
        answer = await self._server.get("/v1/models")
        return chosen_model(answer, self._wanted, f"{self._server.base_url}/v1/models").name

    def _places(self, answer: Any, n: int) -> list[list[Any]]:
        try:
            return [list(choice["prompt_logprobs"]) for choice in rows_of(answer, "choices", n)]
        except ValueError as error:
            raise self._unexpected(f"{error}. Is it a vLLM server?") from error
        except (KeyError, TypeError) as error:
            raise self._unexpected(f"expected prompt_logprobs, got {quoted(answer)}. Is it a vLLM server?") from error

    def _count(self, model: str, answers: Sequence[Any]) -> None:
        for answer in answers:
            used = usage_of(answer)
            self.usage += used
            record("policy", used, model=model)

    def _unexpected(self, reason: str) -> CriticServerError:
        return CriticServerError(f"{self._server.base_url}{_PATH}", reason)


def _plain(text: str) -> dict[str, Any]:
    return {"prompt": text, "add_special_tokens": False}


def _logprob(reported: Any) -> float:
    """Raises `ValueError` where it is none."""
    found = float(reported["logprob"])
    if not math.isfinite(found):
        raise ValueError(f"{found} is no log-probability")
    if found < LEAST_LOGPROB:
        raise ValueError(f"{found:g} is no log-probability. {OVERWRITTEN}")
    return found


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    length = min(len(left), len(right))
    return next((i for i in range(length) if left[i] != right[i]), length)


_PATH = "/v1/completions"
_PROBE = "x"
_REMEMBERED = 50_000
