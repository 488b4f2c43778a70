import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from amc_agents.critics.value.checkpoint import FILE, ValueCheckpoint
from amc_agents.types import Trajectory
from tests.training.toy_trajectories import decided_by_the_first_answer, tiny_llama

torch = pytest.importorskip("torch")
# make test-portable runs the same tests with more threads, so that sums are added in another order.
torch.set_num_threads(int(os.environ.get("AMC_TEST_THREADS", "1")))


@pytest.fixture(scope="session")
def toy_trajectories():
    """A function (tasks, trajectories per task) -> finished trajectories of a learnable problem."""
    return decided_by_the_first_answer


@pytest.fixture(scope="session")
def base_model(tmp_path_factory) -> Path:
    """A tiny Llama of random weights with the shipped tokenizer."""
    return tiny_llama(tmp_path_factory.mktemp("base"))


@dataclass(frozen=True)
class Trained:
    base: Path
    out: Path
    """The saved model. `adapter/` contains the JSON file too, as in a shipped adapter."""
    trajectories: list[Trajectory]
    checkpoint: ValueCheckpoint


@pytest.fixture(scope="session")
def trained(base_model, tmp_path_factory) -> Trained:
    from amc_agents.training.value.train_value import EMBEDDED, train_value

    out = tmp_path_factory.mktemp("value")
    trajectories = decided_by_the_first_answer(60, 5)
    checkpoint = train_value(base_model, trajectories, out, replace(EMBEDDED, epochs=6))
    shutil.copy(out / FILE, out / "adapter")
    return Trained(base_model, out, trajectories, checkpoint)
