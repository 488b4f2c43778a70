"""Any classifier or reward model on vLLM's /classify or /pooling as a critic: `classify:http://host:8000?label=0`."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import httpx
import numpy as np
from pydantic import SecretStr

from amc_agents.budget import Bound
from amc_agents.concurrency.gather import Once
from amc_agents.critics.adapting import checked_values
from amc_agents.critics.judge.style import without_role_tokens
from amc_agents.critics.render import PLAIN, filled_round, turn
from amc_agents.critics.server.client import KEY_VARIABLE, ModelServer, server_options
from amc_agents.critics.server.served import chosen_model, rows_of
from amc_agents.critics.spec import allow, choice, needed
from amc_agents.errors import ConfigurationError, CriticError, CriticServerError, CriticSpecError
from amc_agents.quoting import quoted
from amc_agents.types import FloatArray, Step, Task, Trajectory
from amc_agents.usage import Usage, record

Endpoint = Literal["classify", "pooling"]
Render = Callable[[Trajectory], Mapping[str, Any]]
"""Trajectory -> the fields of a request that hold its prompt: `input`, or `messages` and how to render them."""


def as_text(trajectory: Trajectory) -> dict[str, Any]:
    """Render a trajectory as plain text, for classifiers without a chat template."""
    opening = PLAIN.opening_template.fill(instruction=trajectory.task.instruction)
    return {"input": "".join([opening, *(filled_round(PLAIN.round_template, step) for step in trajectory.steps)])}


def as_chat(trajectory: Trajectory) -> dict[str, Any]:
    """Render a trajectory as a conversation, to which the server applies the model's chat template."""
    return {"messages": chat(trajectory), "add_generation_prompt": False}


class _Session(NamedTuple):
    """A model that was looked up and has answered."""

    model: str
    probe: float
    """Its score of a short prompt."""
    interruptions: int
    """`ModelServer.interruptions` when the score arrived."""


class ClassifierCritic:
    """A classifier or reward model on a vLLM server that predicts the whole return. The constructor sends no request.

    The value is the score of a label, mapped linearly: `returns[0]` at score 0, `returns[1]` at score 1. The model was
    not trained on your agent: measure it on your own runs (`amc score`), and calibrate it (`amc calibrate`).

    At the first use, the model is looked up and scores a short prompt, so that a missing label or chat template is an
    error before a run begins. After a lost connection this is repeated, and another score is an error.

    Args:
        url: such as "http://host:8000".
        model: the model's name on the server; None: the only model there.
        label: index of the label whose score counts.
        returns: the whole returns at the scores 0 and 1, in reward units. Descending for a label of failure.
        activation: True: the label's probability; False: the raw score; None: the server's default for the model.
        render: how a trajectory is written; see `as_chat` and `as_text`.
        endpoint: "classify" or "pooling", where the model is served.
        newest: for a prompt beyond the server's limit: True keeps its newest tokens; False is an error.
        api_key: None: the value of the environment variable `key_variable`, if it is set.
        key_variable: name of the key's environment variable.
        timeout: seconds for one request.
        retry_for: seconds over which a request that fails temporarily is retried.
        trusted: False for a critic that a call names, see `ModelServer`.
        transport: an httpx transport, for tests.

    Raises:
        ConfigurationError: the URL or a setting is invalid.
    """

    predicts = "return"
    """Predicts the whole return, so it can also score trajectories that are over."""

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        label: int = 0,
        returns: tuple[float, float] = (0.0, 1.0),
        activation: bool | None = None,
        render: Render = as_chat,
        endpoint: Endpoint = "classify",
        newest: bool = False,
        api_key: str | SecretStr | None = None,
        key_variable: str = KEY_VARIABLE,
        timeout: float = 60.0,
        retry_for: float = 60.0,
        trusted: bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
        kind: str = "classify",
    ) -> None:
        at_0, at_1 = returns
        if not (math.isfinite(at_0) and math.isfinite(at_1) and at_0 != at_1):
            raise ConfigurationError(f"range must be two different finite numbers, got {at_0:g} and {at_1:g}")
        if label < 0:
            raise ConfigurationError(f"label is {label}: expected the index of a label, at least 0")
        self._server = ModelServer(
            url, api_key=api_key, key_variable=key_variable, timeout=timeout, retry_for=retry_for, trusted=trusted,
            transport=transport,
        )  # fmt: skip
        self.name = f"{kind}:{self._server.base_url}" + (f"?model={model}" if model else "")
        self.returns = (min(returns), max(returns))
        """The least and the greatest return that a probability is mapped to, in reward units."""
        self.usage = Usage()
        """Total usage so far; a run reports the difference."""
        self._model, self._label, self._at = model, label, returns
        self._render, self._endpoint = render, endpoint
        self._settings: dict[str, Any] = {} if activation is None else {"use_activation": activation}
        if newest:
            self._settings |= {"truncate_prompt_tokens": -1, "truncation_side": "left"}
        self._session = Once(self._open)
        self._first_probe: float | None = None

    async def connect(self) -> str:
        """Look up the model, score a short prompt, and return the model's name. The first `values` connects, too.

        Raises:
            CriticServerError: the server cannot be reached or does not serve the model, it refuses the prompt, or
                another model than before answers.
            CriticError: the answer is not a finite score of the label.
        """
        with self._server.redacted():
            return (await self._session.get()).model

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` predictions of the whole return in reward units; equal prompts are scored once.

        Raises:
            CriticServerError, CriticError: as in `connect`, or a prompt exceeds the server's limit.
        """
        trajectories = tuple(trajectories)
        if not trajectories:
            return np.zeros(0)
        with self._server.redacted():
            prompts = await asyncio.to_thread(lambda: [_as_json(self._render(each)) for each in trajectories])
            distinct = list(dict.fromkeys(prompts))
            session = await self._session.get()
            scores = await self._scores(session.model, distinct)
            if session.interruptions != self._server.interruptions:
                # Another server may have answered: accept the scores only if it is the same model.
                self._session.drop(session)
                await self._session.get()
        by_prompt = dict(zip(distinct, scores, strict=True))
        at_0, at_1 = self._at
        return np.array([at_0 + (at_1 - at_0) * by_prompt[prompt] for prompt in prompts])

    async def _open(self) -> _Session:
        answer = await self._server.get("/v1/models")
        model = chosen_model(answer, self._model, f"{self._server.base_url}/v1/models").name
        (score,) = await self._scores(model, [_as_json(self._render(_PROBE))])
        if self._first_probe is not None and abs(score - self._first_probe) > _TOLERANCE:
            raise CriticServerError(
                self._server.base_url,
                f"after a lost connection another model answers: it scores a known prompt {score:.3g}, expected "
                f"{self._first_probe:.3g}. Give each model its own URL",
            )
        self._first_probe = score
        return _Session(model, score, self._server.interruptions)

    async def _scores(self, model: str, prompts: Sequence[str]) -> list[float]:
        """Score distinct prompts, given as the JSON of their fields."""
        bodies = [{"model": model, **self._settings, **json.loads(prompt)} for prompt in prompts]
        # No tokenizer has more tokens than bytes; the server's chat template adds some.
        bounds = [Bound(model, len(prompt.encode()) + _TEMPLATE, 0) for prompt in prompts]

        def count(_: int, used: Usage) -> None:
            self.usage += used
            record("critic", used, model)

        try:
            answers = await self._server.post(f"/{self._endpoint}", bodies, bounds, count=count)
        except CriticServerError as error:
            raise CriticServerError(error.url, error.reason + self._hint(error), error.status) from error
        scores = checked_values([self._score_of(answer) for answer in answers], len(prompts), self.name)
        return [float(score) for score in scores]

    def _score_of(self, answer: Any) -> float:
        try:
            (row,) = rows_of(answer, "data", 1)
        except ValueError as error:
            raise CriticError(f"critic {self.name}: {error}. Is it vLLM with a classifier?") from error
        name = "probs" if self._endpoint == "classify" else "data"
        scores = row.get(name)
        if not isinstance(scores, list) or not all(type(score) in (int, float) for score in scores):
            raise CriticError(f"critic {self.name}: expected a list of numbers in `{name}`, got {quoted(row, 200)}")
        if self._label >= len(scores):
            raise CriticError(
                f"critic {self.name}: label {self._label} was asked for, and the model has {len(scores)} labels: "
                f"expected 0 to {len(scores) - 1}"
            )
        return float(scores[self._label])

    def _hint(self, error: CriticServerError) -> str:
        reason = error.reason.lower()
        if error.status == 404:
            return ". Serve it with --runner pooling"
        if error.status == 400 and "chat template" in reason:
            return ". This model has no chat template: use input=text, or start the server with --chat-template"
        if error.status == 400 and ("maximum" in reason or "length" in reason):
            return ". The prompt is too long: start the server with a larger --max-model-len, or use truncate=oldest"
        return ""


def from_spec(target: str, options: Mapping[str, str], *, trusted: bool = True) -> ClassifierCritic:
    """The critic of `classify:target?model=&label=0&range=0,1&input=chat&activation=&endpoint=&truncate=`."""
    allow("classify", options, *SHARED_OPTIONS, "label", "input", "endpoint")
    render = as_chat if choice("classify", options, "input", "chat", ("chat", "text")) == "chat" else as_text
    pooling = choice("classify", options, "endpoint", "classify", ("classify", "pooling")) == "pooling"
    return ClassifierCritic(
        needed("classify", target, "http://host:8000"),
        label=label_of("classify", options),
        render=render,
        endpoint="pooling" if pooling else "classify",
        **shared_options("classify", options),
        trusted=trusted,
    )


SHARED_OPTIONS = ("model", "range", "activation", "truncate", "key_env", "timeout", "retry_for")
"""Options of all kinds of classifiers."""


def shared_options(kind: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of `ClassifierCritic` from `SHARED_OPTIONS`. Raises `CriticSpecError`."""
    activation = choice(kind, options, "activation", "default", ("default", "true", "false"))
    return {
        "model": options.get("model"),
        "returns": _range(kind, options),
        "activation": None if activation == "default" else activation == "true",
        "newest": choice(kind, options, "truncate", "never", ("never", "oldest")) == "oldest",
        **server_options(kind, options),
    }


def label_of(kind: str, options: Mapping[str, str]) -> int:
    """Read the option label. Raises `CriticSpecError`."""
    text = options.get("label", "0")
    if not text.isdecimal() or len(text) > 6:
        raise CriticSpecError(
            f"critic kind {quoted(kind)}: label must be the index of a label, such as 0, got {quoted(text, 40)}"
        )
    return int(text)


def _range(kind: str, options: Mapping[str, str]) -> tuple[float, float]:
    text = options.get("range", "0,1")
    try:
        at_0, at_1 = (float(part) for part in text.split(","))
    except ValueError:
        at_0 = at_1 = math.nan
    if not (math.isfinite(at_0) and math.isfinite(at_1) and at_0 != at_1):
        raise CriticSpecError(
            f"critic kind {quoted(kind)}: range must be two different numbers, the returns at the scores 0 and 1, such "
            f"as range=0,1; got {quoted(text, 40)}"
        )
    return at_0, at_1


def _as_json(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=False)


_PROBE = Trajectory(Task("", "Say hello."), (Step("Hello."),), done=True)
_TOLERANCE = 0.02
"""Difference between scores of the same prompt that another batch or number type may cause."""
_TEMPLATE = 1000
"""Upper bound for the tokens that a chat template adds."""


Message = dict[str, str]
"""`role` and `content`."""


def chat(trajectory: Trajectory) -> list[Message]:
    """Render the task and the observations as the user's messages, and the agent's turns as the assistant's.

    Most chat templates want the two to alternate, so neighbours with the same role are joined. Role tokens in a text
    are broken by a zero-width space.
    """
    messages = [message_of("user", trajectory.task.instruction)]
    for step in trajectory.steps:
        messages += [message_of("assistant", turn(step)), message_of("user", step.observation)]
    return _alternating(message for message in messages if message["content"])


def message_of(role: str, text: str) -> Message:
    """Build a message with broken role tokens."""
    return {"role": role, "content": without_role_tokens(text)}


def _alternating(messages: Iterable[Message]) -> list[Message]:
    joined: list[Message] = []
    for message in messages:
        if joined and joined[-1]["role"] == message["role"]:
            joined[-1] = {**message, "content": f"{joined[-1]['content']}\n{message['content']}"}
        else:
            joined.append(message)
    return joined
