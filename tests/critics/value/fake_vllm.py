"""A fake vLLM server with a value model, and the checkpoint of that model."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import amc_agents.models.embedded
from amc_agents.critics.render import DIALOGUE
from amc_agents.critics.saved import Golden
from amc_agents.critics.server.served import tokenizer_of
from amc_agents.critics.value.checkpoint import ValueCheckpoint
from amc_agents.types import Step, Task, Trajectory
from tests.critics.server.scripted_server import Reply, ScriptedServer

TOKENIZER = Path(amc_agents.models.embedded.__path__[0]) / "crafting" / "tokenizer.json"
TASK = Task("t", "Crafting commands:\ncraft 1 oak gate using 2 clay, 1 silk\n\nGoal: craft oak gate.")
SCALE = 10.0


def score(ids, shift=0.0):
    """Score of a fake value model, which depends on every token and its position."""
    return float(np.sin(sum((position + 1) * token for position, token in enumerate(ids)) % 1000)) + shift


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint folder without weights, as the client needs it."""
    path = tmp_path_factory.mktemp("value")
    shutil.copy(TOKENIZER, path)
    tokenize = tokenizer_of(path)
    golden = []
    for n in range(3):
        segments = DIALOGUE.segments(trajectory(n))
        ids = tuple(token for text in segments for token in tokenize(text))
        golden.append(Golden(segments, ids, score(ids)))
    checkpoint = ValueCheckpoint(DIALOGUE, None, (), tuple(golden), 1e-6, scale=SCALE, target="return", beta=0.5)
    checkpoint.save(path)
    return path


def trajectory(n, of=0):
    """A trajectory of `n` steps; another `of` gives other texts."""
    return Trajectory(TASK, tuple(Step(f"get {i + 1 + of} clay", f"Got {i + 1 + of} clay") for i in range(n)))


class FakeVLLM(ScriptedServer):
    """A server with vLLM's API. `faults` are the replies to the next requests of /classify."""

    def __init__(self, *, names=("value",), root=None, limit=4096, value=score):
        super().__init__(self.answer)
        self.names, self.root, self.limit, self.value = list(names), root, limit, value
        self.faults, self.change, self.models = [], lambda answer: None, None

    def answer(self, request):
        if request.path == "/v1/models":
            cards = [{"id": name, "root": self.root, "max_model_len": self.limit} for name in self.names]
            return Reply(body={"object": "list", "data": cards} if self.models is None else self.models)
        assert request.body["use_activation"] is False
        rows = request.body["input"]
        if self.faults:
            return self.faults.pop(0)
        if request.body["model"] not in self.names:
            return Reply(404, {"error": {"message": f"The model `{request.body['model']}` does not exist."}})
        if self.limit and max(map(len, rows)) > self.limit:
            return Reply(400, {"error": {"message": f"This model's maximum context length is {self.limit} tokens."}})
        data = [
            {"index": index, "label": "LABEL_0", "probs": [self.value(row)], "num_classes": 1}
            for index, row in enumerate(rows)
        ]
        # vLLM promises no order.
        body = {"object": "list", "data": data[::-1], "usage": {"prompt_tokens": sum(map(len, rows))}}
        self.change(body)
        return Reply(body=body)

    def batches(self):
        """The prompts of each /classify after the handshake, without the control."""
        return [request.body["input"][:-1] for request in self.asked("/classify")[1:]]


def expected(folder, trajectories, limit=None):
    """The values that a critic should return."""
    encoder = replace(ValueCheckpoint.load(folder), max_tokens=limit).encoder(tokenizer_of(folder))
    return [SCALE * score([i for part in encoder.newest(trajectory) for i in part]) for trajectory in trajectories]
