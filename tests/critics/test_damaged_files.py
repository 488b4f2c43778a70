"""Saved critics with truncated, overwritten or wrongly typed files: each loads, or is a named error in one line."""

import asyncio
import json
import shutil
from typing import Any

import pytest

from amc_agents.critics.goal.checkpoint import GoalCheckpoint
from amc_agents.critics.goal.embeddings import HashedWords
from amc_agents.critics.value.checkpoint import ValueCheckpoint
from amc_agents.critics.value.local import EmbeddedCritic
from amc_agents.critics.verdict.checkpoint import VerdictCheckpoint
from amc_agents.errors import CheckpointError
from amc_agents.models.embedded import model_folder
from tests.critics.goal.test_goal import checkpoint_for
from tests.critics.mutations import mutations

SHIPPED = model_folder("crafting")
DAMAGED = (b"", b"{", b"[]", b"null", b"\xff\xfe\x00", b"[" * 100_000, b"1" * 10_000, b'{"kind": [], "version": {}}')
KINDS: dict[str, Any] = {
    "amc_value.json": ValueCheckpoint,
    "amc_verdict.json": VerdictCheckpoint,
    "amc_goal.json": GoalCheckpoint,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a checkpoint of every kind."""
    folder = tmp_path_factory.mktemp("saved")
    shutil.copy(SHIPPED / "value" / "amc_value.json", folder)
    shutil.copy(SHIPPED / "verdict" / "amc_verdict.json", folder)
    asyncio.run(checkpoint_for(HashedWords(64), 64)).save(folder)
    return folder


def loads_or_is_named(load, *arguments):
    try:
        load(*arguments)
    except CheckpointError as error:
        message = str(error)
    else:
        return True
    assert "\n" not in message
    # The message may contain the path of a temporary folder twice.
    assert len(message) <= 600
    return False


@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_checkpoint_is_refused(saved, tmp_path, name):
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    whole = (saved / name).read_bytes()
    assert loads_or_is_named(KINDS[name].load, tmp_path)
    for content in (*DAMAGED, whole[:-3], whole[: len(whole) // 2]):
        (tmp_path / name).write_bytes(content)
        assert not loads_or_is_named(KINDS[name].load, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("name", KINDS)
def test_a_field_of_another_type_is_refused_or_equivalent(saved, tmp_path, name):
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    plain = json.loads((saved / name).read_text())
    free = ("settings", "metrics", "base_model_hash", "data_hash")
    for changed in mutations({key: value for key, value in plain.items() if key not in free}):
        (tmp_path / name).write_text(json.dumps(plain | changed if isinstance(changed, dict) else changed))
        loads_or_is_named(KINDS[name].load, tmp_path)
    for key in plain:
        (tmp_path / name).write_text(json.dumps({**plain, key: {"a": [None]}}))
        assert not loads_or_is_named(KINDS[name].load, tmp_path) or key in ("settings", "metrics")


@pytest.mark.parametrize("cut", [0, 7, 1000, -1])
@pytest.mark.parametrize("name", ["model.safetensors", "value/adapter_model.safetensors"])
def test_truncated_weights_are_a_named_error(tmp_path, monkeypatch, name, cut):
    shutil.copytree(SHIPPED, tmp_path, dirs_exist_ok=True)
    (tmp_path / name).write_bytes((SHIPPED / name).read_bytes()[:cut])
    # Otherwise the check of the base model's hash would fail first.
    monkeypatch.setattr("amc_agents.critics.value.local.weights_hash", lambda folder: hash_of_shipped())
    with pytest.raises(CheckpointError, match=r"damaged or cut off.*git lfs pull"):
        EmbeddedCritic(tmp_path)


def hash_of_shipped():
    return ValueCheckpoint.load(SHIPPED / "value").base_model_hash


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "value/adapter_config.json"])
def test_damaged_files_of_a_model_are_named_errors(tmp_path, name):
    shutil.copytree(SHIPPED, tmp_path, dirs_exist_ok=True)
    plain = json.loads((SHIPPED / name).read_text())
    for content in DAMAGED:
        (tmp_path / name).write_bytes(content)
        assert not loads_or_is_named(EmbeddedCritic, tmp_path)
    for key in plain:
        for value in (None, -1, 0.5, "x", [1], {"a": None}):
            (tmp_path / name).write_text(json.dumps({**plain, key: value}))
            loads_or_is_named(EmbeddedCritic, tmp_path)
        (tmp_path / name).write_text(json.dumps({other: plain[other] for other in plain if other != key}))
        loads_or_is_named(EmbeddedCritic, tmp_path)
