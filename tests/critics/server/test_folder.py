"""Finding the checkpoint of a served model."""

import shutil

import pytest

from amc_agents.critics.server.served import tokenizer_of
from amc_agents.critics.value.checkpoint import FILE
from amc_agents.critics.value.pooling import VLLMCritic
from amc_agents.errors import CheckpointError
from tests.critics.value.fake_vllm import TASK, FakeVLLM, folder

__all__ = ["folder"]


async def test_the_models_name_may_be_a_folder(folder):
    async with FakeVLLM(names=[str(folder)]) as server:
        assert VLLMCritic(server.url, model=str(folder)).predicts == "return"
        assert await VLLMCritic(server.url).connect() == str(folder)


async def test_the_reported_root_may_be_a_folder(folder):
    async with FakeVLLM(root=str(folder)) as server:
        critic = VLLMCritic(server.url)
        await critic.connect()
        assert critic.predicts == "return"


@pytest.fixture
def hub_cache(folder, tmp_path, monkeypatch):
    """A cache of the hub with the repository acme/value, in offline mode."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--acme--value"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    shutil.copytree(folder, repository / "snapshots" / ("0" * 40))
    return repository


@pytest.mark.usefixtures("hub_cache")
@pytest.mark.parametrize("served", [{"names": ["acme/value"]}, {"names": ["value"], "root": "acme/value"}])
async def test_a_repository_of_the_hub_is_found_in_its_cache(served):
    async with FakeVLLM(**served) as server:
        critic = VLLMCritic(server.url)
        await critic.connect()
        assert critic.predicts == "return"


async def test_a_repository_without_a_value_checkpoint(hub_cache):
    next(hub_cache.glob(f"snapshots/*/{FILE}")).unlink()
    async with FakeVLLM(names=["acme/value"]) as server:
        with pytest.raises(CheckpointError, match=f"it has no {FILE}"):
            await VLLMCritic(server.url).connect()


@pytest.mark.usefixtures("hub_cache")
async def test_a_checkpoint_that_is_not_found_is_an_error_with_a_remedy():
    async with FakeVLLM(names=["acme/other"], root="/on/another/machine") as server:
        with pytest.raises(CheckpointError, match="checkpoint=path/to/value") as caught:
            await VLLMCritic(server.url).connect()
    assert "/on/another/machine: no folder of this machine" in str(caught.value)
    assert "acme/other on the Hugging Face hub" in str(caught.value)


def test_an_invalid_checkpoint_folder_is_refused_at_once(tmp_path):
    with pytest.raises(CheckpointError, match=f"with {FILE} in it"):
        VLLMCritic("http://host:8000", checkpoint=tmp_path)


async def test_a_folder_without_its_tokenizer(folder, tmp_path):
    shutil.copy(folder / FILE, tmp_path)
    async with FakeVLLM() as server:
        with pytest.raises(CheckpointError, match=r"tokenizer\.json does not exist"):
            await VLLMCritic(server.url, checkpoint=tmp_path).connect()
        (tmp_path / "tokenizer.json").write_text("{}")
        with pytest.raises(CheckpointError, match="is not a tokenizer"):
            await VLLMCritic(server.url, checkpoint=tmp_path).connect()


def test_truncation_and_padding_of_the_tokenizer_file_are_ignored(folder, tmp_path):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=6)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for text in ("get clay", TASK.instruction):
        assert tokenizer_of(tmp_path)(text) == tokenizer_of(folder)(text)
