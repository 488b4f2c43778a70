"""Every way to serve a value model wrongly, on a real vLLM server: it answers with status 200, and the critic names it.

Faults of a request are injected by a proxy in front of a correct server; each fault of a server's set-up has its own
server.
"""

from __future__ import annotations

import json
import shutil

import httpx
import pytest
from safetensors.numpy import load_file, save_file

from amc_agents.critics.value.checkpoint import FILE
from amc_agents.critics.value.pooling import VLLMCritic
from amc_agents.envs.crafting import generate_tasks
from amc_agents.errors import CheckpointError
from amc_agents.models.embedded import model_folder
from amc_agents.models.embedded.weights import read_weights
from amc_agents.types import Trajectory
from tests.service.servers import needs_vllm, vllm_server

SHIPPED = model_folder("crafting")
STATES = [Trajectory(task, ()) for task in generate_tasks(2, "shipped")]

pytestmark = pytest.mark.service


class Edited(httpx.AsyncHTTPTransport):
    """A proxy that edits requests: sets keys of the body, and removes keys set to None."""

    def __init__(self, **edits) -> None:
        super().__init__()
        self._edits = edits

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/classify":
            body = json.loads(request.content) | self._edits
            body = {key: value for key, value in body.items() if value is not None}
            headers = {name: text for name, text in request.headers.items() if name != "content-length"}
            request = httpx.Request(
                request.method, request.url, headers=headers, json=body, extensions=request.extensions
            )
        return await super().handle_async_request(request)


async def refusal(critic: VLLMCritic) -> str:
    """Return the likely cause in the critic's error, and print the whole message."""
    with pytest.raises(CheckpointError) as caught:
        await critic.values(STATES)
    print(caught.value)
    return str(caught.value).split("Likely cause: ")[1]


async def test_a_correct_server_is_accepted(value_url, value_folder):
    values = await VLLMCritic(value_url, checkpoint=value_folder, transport=Edited()).values(STATES)
    assert values.shape == (2,)


async def test_the_activation_left_on(value_url, value_folder):
    critic = VLLMCritic(value_url, checkpoint=value_folder, transport=Edited(use_activation=None))
    assert "a sigmoid was applied" in await refusal(critic)


@pytest.mark.parametrize("kept", [64, 300, 416])
@pytest.mark.parametrize("side", ["right", "left"])
async def test_prompts_cut_on_the_way(value_url, value_folder, side, kept):
    proxy = Edited(truncate_prompt_tokens=kept, truncation_side=side)
    assert f"truncated on the {side}" in await refusal(VLLMCritic(value_url, checkpoint=value_folder, transport=proxy))


async def test_prompts_cut_on_the_servers_own_side(value_url, value_folder):
    proxy = Edited(truncate_prompt_tokens=300)
    assert "truncated on the right, which loses the newest state" in await refusal(
        VLLMCritic(value_url, checkpoint=value_folder, transport=proxy)
    )


async def test_the_template_of_another_checkpoint(value_url, value_folder, tmp_path):
    shutil.copytree(value_folder, tmp_path, dirs_exist_ok=True)
    values = json.loads((tmp_path / FILE).read_text())
    values["format"]["opening"] = "Task: {instruction}"
    (tmp_path / FILE).write_text(json.dumps(values))
    assert "another template" in await refusal(VLLMCritic(value_url, checkpoint=tmp_path))


async def test_the_tokenizer_of_another_checkpoint(value_url, value_folder, tmp_path):
    shutil.copytree(value_folder, tmp_path, dirs_exist_ok=True)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    words = tokenizer["model"]["vocab"]
    first, last = (next(word for word, number in words.items() if number == place) for place in (12, len(words) - 1))
    words[first], words[last] = words[last], words[first]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "another tokenizer" in await refusal(VLLMCritic(value_url, checkpoint=tmp_path))


def pooling(kind: str) -> tuple[str, ...]:
    # With a prefix cache, vLLM's engine dies at the first request with these poolings.
    return "--pooler-config", json.dumps({"pooling_type": kind}), "--no-enable-prefix-caching"


@needs_vllm
@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        (pooling("MEAN"), "mean pooling"),
        (pooling("CLS"), "first-token pooling"),
        (("--dtype", "bfloat16"), "less precision"),
        (("--dtype", "float16"), "less precision"),
    ],
    ids=["mean", "first token", "bfloat16", "float16"],
)
async def test_a_misconfigured_server(value_folder, flags, cause):
    with vllm_server(value_folder, extra=flags) as server:
        message = await refusal(VLLMCritic(server.url, checkpoint=value_folder))
        assert cause in message
        if "tolerance=" in message:
            accepted = float(message.split("tolerance=")[1])
            assert accepted < 0.05
            assert (await VLLMCritic(server.url, checkpoint=value_folder, tolerance=accepted).values(STATES)).shape == (
                2,
            )


@needs_vllm
@pytest.mark.parametrize(("share", "cause"), [(0.0, "without the adapter"), (0.5, "other weights")])
async def test_other_weights_than_the_checkpoints(value_folder, tmp_path, share, cause):
    # The trained head on the base model with a share of the adapter: without it, or like another fine-tuning.
    folder = tmp_path / "model"
    shutil.copytree(value_folder, folder)
    base, merged = read_weights(SHIPPED), load_file(value_folder / "model.safetensors")
    weights = {name: base.get(name, whole) + share * (whole - base.get(name, whole)) for name, whole in merged.items()}
    save_file({name: tensor.astype("float32") for name, tensor in weights.items()}, folder / "model.safetensors")
    with vllm_server(folder) as server:
        assert cause in await refusal(VLLMCritic(server.url, checkpoint=value_folder))


@needs_vllm
async def test_a_language_model_without_a_value_head(value_folder):
    flags = ("--runner", "pooling", "--convert", "classify", "--hf-overrides", '{"num_labels": 1}')
    with vllm_server(SHIPPED, role="policy", extra=flags) as server:
        assert "no trained value head" in await refusal(VLLMCritic(server.url, checkpoint=value_folder))
