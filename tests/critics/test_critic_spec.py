import re
import shutil
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from amc_agents.critics import spec as spec_module
from amc_agents.critics.adapting import checked_values
from amc_agents.critics.spec import UniformCritic, parse_critic
from amc_agents.errors import CheckpointError, ConfigurationError, CriticError, CriticSpecError
from amc_agents.models.embedded import model_folder
from amc_agents.types import Task, Trajectory


class Constant:
    def __init__(self, level="0"):
        self.level = float(level)

    async def values(self, trajectories):
        return np.full(len(trajectories), self.level)


ready = Constant("2")
number = 3
table = {}


async def test_uniform_predicts_nothing():
    critic = parse_critic("uniform")
    assert isinstance(critic, UniformCritic)
    assert (await critic.values([Trajectory(Task("t", ""))] * 3)).tolist() == [0.0, 0.0, 0.0]


def test_an_object_is_returned_unchanged():
    assert parse_critic(ready) is ready


async def test_a_module_string_names_an_object_or_a_factory():
    assert parse_critic(f"{__name__}:ready") is ready
    made = parse_critic(f"{__name__}:Constant?level=0.5")
    assert (await made.values([Trajectory(Task("t", ""))])).tolist() == [0.5]


def test_entry_points_add_kinds(monkeypatch):
    point = SimpleNamespace(name="vendor", load=lambda: lambda target, options: Constant(options["level"]))
    monkeypatch.setattr(spec_module, "entry_points", lambda group: [point] if group == "amc_agents.critics" else [])
    made = parse_critic("vendor:place?level=4")
    assert isinstance(made, Constant)
    assert made.level == 4.0


def test_a_target_may_hold_colons_and_slashes(monkeypatch):
    def far(target, options):
        assert (target, options) == ("http://host:8000", {"model": "org/name"})
        return ready

    monkeypatch.setitem(spec_module.KINDS, "far", far)
    assert parse_critic("far:http://host:8000?model=org/name") is ready


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("unifrom", r"embedded, foa, goal, hf, judge, .*uniform, verdict, vllm.*did you mean 'uniform'"),
        ("embeded:crafting", r"did you mean 'embedded'"),
        ("hf", "needs a target, as in hf:path/to/value"),
        ("hf:x?devise=cuda", r"no option 'devise': it takes device, dtype, batch_size; did you mean 'device'"),
        ("hf:x?batch_size=many", "positive integer, got 'many'"),
        (f"hf:x?batch_size={'9' * 900}", "positive integer, got '9999"),
        ("a." * 400 + "b:c", "was not understood"),
        ("hf:" + "x" * 900, "the file name is too long"),
        ("hf:x?" + "a=1&" * 100_000, "at most 1,000 characters, got 400,005"),
        ("hf:x?dtype=int", "one of auto, float32, bfloat16, float16, got 'int'"),
        ("uniform:x", "takes no target"),
        (f"{__name__}:reedy", "did you mean 'ready'"),
        (f"{__name__}:number", "number': expected a critic or its string.*got int"),
        (5, "got int"),
        (Constant, "got the class Constant"),
        ({"critic": "uniform"}, "got dict"),
        (f"{__name__}:table", "got dict"),
    ],
)
def test_an_invalid_string_is_an_error_with_a_hint(spec, message):
    with pytest.raises(CriticSpecError, match=message):
        parse_critic(spec)


def test_an_unknown_shipped_model_is_an_error_that_lists_the_models():
    with pytest.raises(
        CheckpointError, match=r"'cooking' with a value adapter; shipped are \['crafting', 'workshop'\]"
    ):
        parse_critic("embedded:cooking")


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("spec", ["openai:gpt-5-mini", "anthropic:claude?temperature=0"])
def test_the_name_of_a_chat_model_suggests_a_judge(spec, trusted):
    with pytest.raises(CriticSpecError, match=re.escape(f"did you mean 'judge:{spec}'?")):
        parse_critic(spec, trusted=trusted)


async def test_the_adapter_option_names_a_folder(tmp_path):
    other = tmp_path / "other"
    shutil.copytree(model_folder("crafting") / "value", other)
    weights = load_file(other / "adapter_model.safetensors")
    head = next(name for name in weights if "score" in name)
    save_file(weights | {head: -weights[head]}, other / "adapter_model.safetensors")
    state = [Trajectory(Task("t", "Goal: craft oak gate."))]
    with pytest.raises(CheckpointError, match="golden scores differ"):  # so these are the weights that are asked
        await parse_critic(f"embedded:crafting?adapter={other}").values(state)
    shipped = await parse_critic("embedded:crafting").values(state)
    assert (await parse_critic("embedded:crafting?adapter=value").values(state)).tolist() == shipped.tolist()
    with pytest.raises(CheckpointError, match="nowhere"):
        parse_critic("embedded:crafting?adapter=nowhere")


class Requires:
    """A tensor as PyTorch has them: conversion to numpy fails while it requires a gradient."""

    requires_grad = True

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("detach it")


@pytest.mark.parametrize(
    "answer", [[1, Fraction(1, 2)], (True, False), [Decimal("0.5"), 1.0], np.ma.masked_array([1.0, 2.0])]
)
def test_real_numbers_of_any_type_are_values(answer):
    assert checked_values(answer, 2, "mine").tolist() == [float(number) for number in answer]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([[1.0, 2.0]], r"shape \[1, 2\], expected \[2\]"),
        (1.0, r"shape \[\]"),
        ([1.0, float("nan")], "nan for trajectory 1"),
        ([float("inf"), 0.0], "inf for trajectory 0"),
        (["a", "b"], "expected"),
        (["0.5", "0.7"], "answered list of str"),
        (np.array(["0.5", "0.7"], dtype=object), "ndarray with str"),
        ([b"1", b"2"], "list of bytes"),
        ([0.5 + 1j, 0.7], "list of complex128"),
        (np.array([1, 2], dtype="timedelta64[s]"), "ndarray of timedelta64"),
        (np.ma.masked_array([0.5, 0.7], mask=[False, True]), "masked entries"),
        ([None, 0.5], "list with NoneType"),
        (Requires(), "Requires with requires_grad: detach it"),
        ([Requires(), Requires()], r"list \(detach"),
    ],
)
def test_an_invalid_answer_of_a_critic_is_an_error(answer, message):
    with pytest.raises(CriticError, match=message):
        checked_values(answer, 2, "mine")


def test_the_package_of_critics_has_the_function_and_loads_nothing_heavy():
    code = (
        "import sys; from amc_agents.critics import parse_critic; parse_critic('uniform'); "
        "print(sorted({'torch', 'transformers', 'vllm'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "spec",
    [
        "hf:folder",
        "calibrated:folder",
        "goal:folder",
        "goal:folder?embeddings=hashed:8",
        "embedded:crafting?adapter=folder",
        "embedded:/tmp/folder",
        "embedded:../folder",
        "embedded:unknown",
        "verdict:embedded:/tmp/folder",
        "vllm:http://127.0.0.1:8000?checkpoint=folder",
        "verdict:http://127.0.0.1:8000?checkpoint=folder",
        "judge:huggingface:folder",
        "foa:huggingface:folder",
        "verdict:huggingface:folder",
    ],
)
def test_an_untrusted_string_may_not_name_files(spec):
    with pytest.raises(CriticSpecError, match=r'a call may not name files.*critics=\{"name": critic\}'):
        parse_critic(spec, trusted=False)


def test_an_untrusted_string_may_not_name_a_folder_by_a_shipped_models_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parse_critic("embedded:crafting", trusted=False)
    (tmp_path / "crafting").mkdir()
    with pytest.raises(CriticSpecError, match="a call may not name files"):
        parse_critic("embedded:crafting", trusted=False)


@pytest.mark.parametrize("kind", ["vllm", "verdict"])
@pytest.mark.parametrize(
    "host",
    ["169.254.169.254", "169.254.0.1:80", "[fe80::1]", "[::ffff:169.254.169.254]", "[64:ff9b::a9fe:a9fe]",
     "[2002:a9fe:a9fe::1]", "[::169.254.169.254]", "[::ffff:0:a9fe:a9fe]", "[64:ff9b:1::a9fe:a9fe]",
     "[2001:0:a9fe:a9fe::1]", "[2001:0:808:808:0:0:5601:5601]", "[fd00:ec2::254]", "100.100.100.200", "0.0.0.0"],
)  # fmt: skip
def test_an_untrusted_string_may_not_name_a_link_local_address(kind, host):
    parse_critic(f"{kind}:http://{host}")
    with pytest.raises(ConfigurationError, match="a call may not name"):
        parse_critic(f"{kind}:http://{host}", trusted=False)
    # A user's program may name a server on its own machine for a call.
    parse_critic(f"{kind}:http://127.0.0.1:8000", trusted=False)


def test_a_factory_without_trusted_gets_no_address_from_an_untrusted_string(monkeypatch):
    monkeypatch.setitem(spec_module.KINDS, "vendor", lambda target, options: ready)
    assert parse_critic("vendor:place", trusted=False) is ready
    assert parse_critic("vendor:http://host") is ready
    for spec in ("vendor:http://host", "vendor:place?to=http:%2F%2Fhost"):
        with pytest.raises(CriticSpecError, match="a call may not name an address for this kind"):
            parse_critic(spec, trusted=False)


@pytest.mark.parametrize("trusted", [False, True])
def test_a_factory_may_take_trusted(trusted, monkeypatch):
    def make(target, options, *, trusted):
        return Constant(trusted)

    monkeypatch.setitem(spec_module.KINDS, "vendor", make)
    made = parse_critic("vendor:http://host", trusted=trusted)
    assert isinstance(made, Constant)
    assert made.level == trusted
