"""An upstream as a LangChain chat model: the policy of LAC and PNLC.

Unlike providers' clients it keeps every field of the upstream's answer, so that the choice that a decision returns is
the upstream's own: reasoning, log-probabilities, vendors' extensions.
"""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LangSmithParams
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import ConfigDict, Field, SkipValidation

from amc_agents.errors import ConfigurationError
from amc_agents.quoting import excerpt
from amc_agents_gateway.upstream import Upstream
from amc_agents_gateway.wire import candidate, to_plain, usage_metadata


class UpstreamChat(BaseChatModel):
    """A chat model that sends its requests to an upstream, from the gateway's event loop only."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    upstream: SkipValidation[Upstream] = Field(repr=False)
    n: int | None = None
    """Number of answers of a request; its presence says that requests may ask for several."""
    temperature: float | None = None
    logprobs: bool | None = None
    disable_streaming: Any = True
    cache: Any = False

    @property
    def _llm_type(self) -> str:
        return "openai-compatible"

    @property
    def model_name(self) -> str:
        """The upstream's name of the model."""
        return self.upstream.model

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": self.upstream.model, "temperature": self.temperature}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = LangSmithParams(
            ls_provider=self.upstream.provider, ls_model_name=self.upstream.model, ls_model_type="chat"
        )
        if self.upstream.default_max_tokens is not None:
            params["ls_max_tokens"] = self.upstream.default_max_tokens
        return params

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **call: Any,
    ) -> ChatResult:
        own = {"n": self.n, "temperature": self.temperature, "logprobs": self.logprobs, "stop": stop}
        body = {**call.pop("extra_body", {}), **{name: value for name, value in own.items() if value is not None}}
        answer = await self.upstream.complete(self.upstream.prepared({**body, **call, "messages": to_plain(messages)}))
        try:
            usage = usage_metadata(answer)
            messages = [candidate(choice, usage) for choice in answer["choices"]]
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise self.upstream.invalid(f"{type(error).__name__} in the answer {excerpt(str(answer))}") from error
        return ChatResult(generations=[ChatGeneration(message=message) for message in messages])

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **call: Any,
    ) -> ChatResult:
        raise ConfigurationError("the gateway's upstreams are called from coroutines: use ainvoke")
