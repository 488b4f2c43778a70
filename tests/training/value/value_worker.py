"""A process of a training, for tests that kill it or run two of them: torchrun ... value_worker.py JOBS

JOBS: a JSON list of {"base", "data", "out", "settings", "weights", "resume", "die_at"}. The trained weights are
written to `weights` before rounding to half precision. At step `die_at` the first process kills itself.
"""

import json
import os
import signal
import sys
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
from safetensors.torch import save_file

from amc_agents.training.settings import Objective
from amc_agents.training.value import train_value as training
from amc_agents.training.value.train_value import EMBEDDED

value: Any = training


def run(job):
    trained = {}

    def rounded(model, round_to_half=value.round_to_half):
        for name, one in model.named_parameters():
            if one.requires_grad:
                whole = one.full_tensor() if hasattr(one, "full_tensor") else one
                trained[name] = whole.detach().clone()
        round_to_half(model)

    def die(progress):
        if progress.step == job.get("die_at"):
            os.kill(os.getpid(), signal.SIGKILL)

    given = {**job["settings"], "objective": Objective(**job["settings"].get("objective", {}))}
    settings = replace(EMBEDDED, **given)
    original, value.round_to_half = value.round_to_half, rounded
    try:
        value.train_value(job["base"], job["data"], job["out"], settings, progress=die, resume=job.get("resume", False))
    finally:
        value.round_to_half = original
    if os.environ.get("RANK", "0") == "0":
        save_file(trained, job["weights"])


def the_cpu_is_an_accelerator():
    """Make accelerate, which shards only on accelerators, treat the CPU as an accelerator."""
    accelerate = import_module("accelerate")
    prepare = accelerate.PartialState._prepare_backend

    def prepared(self, *args, **kwargs):
        return prepare(self, *args, **kwargs)[0], accelerate.DistributedType.MULTI_GPU

    def set_device(self):
        self.device = torch.device("cpu")

    accelerate.PartialState._prepare_backend, accelerate.PartialState.set_device = prepared, set_device
    torch.distributed.init_process_group("gloo")


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("AMC_TEST_THREADS", "1")))
    if os.environ.get("ACCELERATE_USE_FSDP"):
        the_cpu_is_an_accelerator()
    for job in json.loads(sys.argv[1]):
        run(job)
    value.leave_together()
