"""A value model served by vLLM's pooling runner: `vllm:http://host:8000?model=org/name`.

Prompts are rendered and tokenized here and sent as token ids, all of a call in one request: they are exactly those of
training, and the server's prefix cache knows the part that it has seen before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import numpy as np

from amc_agents.concurrency.once import Once
from amc_agents.critics.options import allow, needed, number, positive_integer, server_options
from amc_agents.critics.render import Encoder
from amc_agents.critics.server.classify import (
    ServedModel,
    chosen_model,
    classify_body,
    ids_as_json,
    scores_of,
    usage_of,
)
from amc_agents.critics.server.folder import local_folder, served_folder, tokenizer_of
from amc_agents.critics.server.http import KEY_VARIABLE, ModelServer
from amc_agents.critics.tokenizing import Tokenize
from amc_agents.critics.validation import checked_values
from amc_agents.critics.value.checkpoint import ValueCheckpoint
from amc_agents.critics.value.scoring import Batch
from amc_agents.errors import CheckpointError, CriticError, CriticServerError
from amc_agents.types import FloatArray, Trajectory
from amc_agents.usage import Usage, record

CONTROL_TOKENS = 4
"""Length of the control prompt, which goes with every request: a fraction of a cache's block."""
_ATTEMPTS = 3
_REMEMBERED = 50_000


@dataclass(frozen=True)
class _Session:
    """What the handshake found; it holds until the server is another one."""

    served: ServedModel
    encoder: Encoder
    control: bytes
    """The control prompt, as JSON."""
    control_score: float
    interruptions: int
    """The server's count when its golden scores had come."""


class VLLMCritic:
    """A value model on a vLLM server. Nothing is asked of the server before the first use.

    At first use the model's name, its length and the checkpoint's golden scores are checked; again after the server
    was gone, and when a short prompt of known score, which goes with every request, scores otherwise than before.
    May be used from several threads and event loops.

    Args:
        url: such as "http://host:8000".
        model: name that the server knows it by; None: the only one there is.
        checkpoint: folder with its `amc_value.json` and `tokenizer.json` (the weights are not needed here). None:
            the model's name or the `root` that the server reports, where that is a folder of this machine or a
            repository of the Hugging Face hub.
        api_key: None: what the environment variable `key_variable` holds, if anything.
        key_variable: where the key is looked up.
        timeout: seconds that one request may take.
        retry_for: seconds over which a request that fails in passing is repeated.
        max_batch: prompts of one request; more are split, and sent side by side.
        tolerance: how far golden scores may be off (2e-2 for a server in bfloat16); None: as the checkpoint says.
        trusted: False for a critic that a call names, see `ModelServer`.
        transport: an httpx transport, for tests.

    Raises:
        CheckpointError: `checkpoint` is no value model's folder.
        ConfigurationError: the address is none.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        checkpoint: str | Path | None = None,
        api_key: str | None = None,
        key_variable: str = KEY_VARIABLE,
        timeout: float = 60.0,
        retry_for: float = 60.0,
        max_batch: int = 256,
        tolerance: float | None = None,
        trusted: bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._server = ModelServer(
            url,
            api_key=api_key,
            key_variable=key_variable,
            timeout=timeout,
            retry_for=retry_for,
            trusted=trusted,
            transport=transport,
        )
        self.name = f"vllm:{self._server.base_url}" + (f"?model={model}" if model else "")
        self.usage = Usage()
        """All that it was asked so far, handshakes included: a run reports the difference."""
        self._model, self._max_batch, self._tolerance = model, max_batch, tolerance
        self._folder = local_folder(checkpoint, model, trusted=trusted)
        self._checkpoint = ValueCheckpoint.load(self._folder) if self._folder else None
        self._tokenize: Tokenize | None = None
        self._session = Once(self._open)
        self._written: dict[tuple[int, ...], bytes] = {}

    @property
    def checkpoint(self) -> ValueCheckpoint:
        """The model's prompts, scale and golden scores. Raises `CriticError` before it is known."""
        if self._checkpoint is None:
            raise CriticError(
                f"critic {self.name}: its checkpoint is not known before the server was asked: await connect(), or "
                "say checkpoint=path/to/value"
            )
        return self._checkpoint

    @property
    def predicts(self) -> str:
        """What a value is: "future", the return still to come, or "return", the whole return."""
        return self.checkpoint.target

    @property
    def beta(self) -> float | None:
        """The beta of an eq. 5 model, which holds for that beta alone; None for any other."""
        return self.checkpoint.beta

    async def connect(self) -> str:
        """Find the model, and shake hands; done by the first `values`, too. Gives the model's name.

        Raises:
            CheckpointError: its checkpoint is not found, or the server's scores are not those of the checkpoint.
            CriticServerError: the server is not there, refuses, or has no such model.
        """
        with self._server.redacted():
            return (await self._session.get()).served.name

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` predictions in reward units; equal prompts are scored once.

        Raises:
            CheckpointError, CriticServerError: as `connect`.
            CriticError: the answer is not one finite number per prompt, or a prompt cannot be made to fit.
        """
        trajectories = tuple(trajectories)
        if not trajectories:
            return np.zeros(0)
        with self._server.redacted():
            return await self._values(trajectories)

    async def _values(self, trajectories: tuple[Trajectory, ...]) -> FloatArray:
        for _ in range(_ATTEMPTS):
            session = await self._session.get()
            # In a thread: the first time that texts are seen, tokenizing them takes a while.
            rows, prompts = await asyncio.to_thread(self._write, session.encoder, trajectories)
            try:
                scores, controls = await self._score(session, prompts)
            except CriticServerError as error:
                if not await self._renamed_or_resized(session, error):
                    raise
                continue
            if session.interruptions != self._server.interruptions:
                # Another server may have answered: the answers count once this one has proved to be the same.
                self._session.drop(session)
                session = await self._session.get()
            if all(abs(control - session.control_score) <= self._allowed for control in controls):
                return self.checkpoint.values(checked_values(scores[rows], len(rows), self.name))
            self._session.drop(session)
        raise CriticServerError(
            self._server.base_url,
            f"the model behind this address changed during each of {_ATTEMPTS} attempts: are servers of different "
            "models behind it? Give each model an address of its own",
        )

    @property
    def _allowed(self) -> float:
        return self.checkpoint.tolerance if self._tolerance is None else self._tolerance

    async def _renamed_or_resized(self, session: _Session, error: CriticServerError) -> bool:
        """Whether a refusal is that of a new server, which wants the model's other name or shorter prompts."""
        if error.status not in (400, 404):
            return False
        self._session.drop(session)
        return (await self._session.get()).served != session.served

    async def _open(self) -> _Session:
        """Look for the model and its checkpoint, and compare the golden scores."""
        answer = await self._server.get("/v1/models")
        served = chosen_model(answer, self._model, f"{self._server.base_url}/v1/models")
        checkpoint, tokenize = await asyncio.to_thread(self._load, served)
        where = f"critic {self.name}"
        await asyncio.to_thread(checkpoint.check_prompts, tokenize, where)
        rows = checkpoint.handshake_rows()
        if not rows:
            raise CheckpointError(f"{where}: the checkpoint has no golden scores, so a wrong server could not be seen")
        longest = max(map(len, rows))
        if served.limit is not None and longest > served.limit:
            raise CheckpointError(
                f"{where}: a golden prompt has {longest} tokens and the server takes {served.limit}: start it with "
                f"--max-model-len {longest} or more"
            )
        control = ids_as_json(rows[0][:CONTROL_TOKENS])
        try:
            (scores,) = await self._ask(served.name, [[*map(ids_as_json, rows), control]])
        except CriticServerError as error:
            if error.status != 404:
                raise
            why = f"{error.reason}. The model is there, but not as a value model: serve it with --runner pooling"
            raise CriticServerError(error.url, why, error.status) from error
        interruptions = self._server.interruptions
        checkpoint.check_scores(scores[:-1], where, self._tolerance)
        limit = min(filter(None, (checkpoint.max_tokens, served.limit)), default=None)
        encoder = replace(checkpoint, max_tokens=limit).encoder(tokenize)
        return _Session(served, encoder, control, float(scores[-1]), interruptions)

    def _load(self, served: ServedModel) -> tuple[ValueCheckpoint, Tokenize]:
        # Found once: a server that comes back with another model is measured by the first one's golden scores.
        if self._folder is None:
            self._folder = served_folder(served.name, served.root, local=self._server.may_name_folders)
        if self._checkpoint is None:
            self._checkpoint = ValueCheckpoint.load(self._folder)
        if self._tokenize is None:
            self._tokenize = tokenizer_of(self._folder)
        return self._checkpoint, self._tokenize

    def _write(self, encoder: Encoder, trajectories: Sequence[Trajectory]) -> tuple[list[int], list[bytes]]:
        """`[N]` rows of the trajectories, and the distinct prompts as JSON."""
        batch = Batch.of(encoder, trajectories)
        if len(self._written) > _REMEMBERED:
            self._written.clear()
        return batch.rows, [b"[%b]" % b",".join(map(self._segment, filter(None, prompt))) for prompt in batch.prompts]

    def _segment(self, ids: tuple[int, ...]) -> bytes:
        """The ids of a segment as JSON without brackets; most were sent before."""
        written = self._written.get(ids)
        if written is None:
            written = self._written[ids] = ids_as_json(ids)[1:-1]
        return written

    async def _score(self, session: _Session, prompts: Sequence[bytes]) -> tuple[FloatArray, list[float]]:
        """`[rows]` raw scores, and `[requests]` scores of the control prompt that went with each request."""
        starts = range(0, len(prompts), self._max_batch)
        requests = [[*prompts[start : start + self._max_batch], session.control] for start in starts]
        answers = await self._ask(session.served.name, requests)
        return np.concatenate([scores[:-1] for scores in answers]), [float(scores[-1]) for scores in answers]

    async def _ask(self, model: str, requests: Sequence[Sequence[bytes]]) -> list[FloatArray]:
        """Raw scores of each request's prompts; counts what they used."""
        answers = await self._server.post("/classify", [classify_body(model, prompts) for prompts in requests])
        for answer in answers:
            used = usage_of(answer)
            self.usage += used
            record("critic", used, model)
        return [
            scores_of(answer, len(prompts), f"critic {self.name}")
            for answer, prompts in zip(answers, requests, strict=True)
        ]


def from_spec(target: str, options: Mapping[str, str], *, trusted: bool = True) -> VLLMCritic:
    """The critic of `vllm:target?options`."""
    allow("vllm", options, "model", "checkpoint", "max_batch", "tolerance", "key_env", "timeout", "retry_for")
    return VLLMCritic(
        needed("vllm", target, "http://host:8000"),
        model=options.get("model"),
        checkpoint=options.get("checkpoint"),
        **server_options("vllm", options),
        max_batch=positive_integer("vllm", options, "max_batch", 256),
        tolerance=number("vllm", options, "tolerance", 0.0, least=0.0) if "tolerance" in options else None,
        trusted=trusted,
    )
