"""Every reader of text and JSON that comes from outside: its inputs, and the errors that it may raise."""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from amc_agents.config import Config
from amc_agents.critics.allowed import AllowedCritics
from amc_agents.critics.calibration import calibration_from_json
from amc_agents.critics.classifier import ClassifierCritic
from amc_agents.critics.goal.checkpoint import GoalCheckpoint
from amc_agents.critics.goal.embeddings import ServerEmbeddings
from amc_agents.critics.judge.critic import FOA
from amc_agents.critics.judge.style import ZERO_SHOT, read_structured
from amc_agents.critics.render import DIALOGUE
from amc_agents.critics.server.client import ModelServer
from amc_agents.critics.spec import parse_critic
from amc_agents.critics.value.checkpoint import ValueCheckpoint
from amc_agents.critics.verdict.checkpoint import VerdictCheckpoint
from amc_agents.critics.verdict.reading import CompletionsReader
from amc_agents.critics.verdict.top_k import TopKReader
from amc_agents.envs.crafting.tasks import parse_instruction
from amc_agents.errors import AmcError, CheckpointError, ConfigurationError, CriticError, PosteriorError
from amc_agents.files import read_json_object
from amc_agents.lac.imagination import before_verdict, read_imagined
from amc_agents.messages import called_tools, split_turn, trajectory_from_messages
from amc_agents.models.embedded import model_folder
from amc_agents.operations.importing import Outcomes, Reading, import_logs
from amc_agents.operations.importing.logged_runs import read_outcomes
from amc_agents.pnlc.prompts import read_choice, read_goals, read_likelihoods, read_reply
from amc_agents.psrl import ids as estimates
from amc_agents.psrl.posterior import store
from amc_agents.psrl.posterior.memory import Evidence, Version
from amc_agents.psrl.posterior.priors import impossible, parse_prior, read_hypothesis
from amc_agents.psrl.posterior.retained import dropped_statements
from amc_agents.psrl.roles import after, read_experience, read_step
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.training.dataset import pyarrow_or_error, read_records
from amc_agents.types import Step, Task, Trajectory
from tests.fuzz.inputs import bodies, mutated, texts


@dataclass(frozen=True)
class Parser:
    """A reader of input from outside."""

    name: str
    read: Callable[[Any, Path], Any]
    """(input, empty folder) -> anything."""
    inputs: st.SearchStrategy[Any]
    errors: tuple[type[Exception], ...] = ()
    """The errors that its docstring names; empty: it raises none."""
    words: tuple[str, ...] = ()
    """Words of its grammar, of which long inputs are made."""


def of_text(read: Callable[[str], Any]) -> Callable[[Any, Path], Any]:
    return lambda text, folder: read(text)


def text_parser(name: str, read: Callable[[str], Any], *words: str, errors: tuple[type[Exception], ...] = ()) -> Parser:
    return Parser(name, of_text(read), texts(*words), errors, words)


def in_file(name: str, load: Callable[[Path], Any]) -> Callable[[Any, Path], Any]:
    """Write the input to a file of a folder, and read that."""

    def read_file(content: str | bytes, folder: Path) -> Any:
        path = folder / name
        path.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
        return load(path)

    return read_file


KINDS = texts(
    "uniform",
    "embedded",
    "hf",
    "vllm",
    "judge",
    "foa",
    "verdict",
    "classify",
    "calibrated",
    "goal",
    "os",
    "crafting",
    "http://",
    "127.0.0.1",
    "host",
    ":8000",
    "[::1]",
    "/v1",
    "?",
    "&",
    "=",
    "#",
    "@",
    "model=",
    "label=",
    "range=",
    "timeout=",
    "tolerance=",
    "key_env=",
    "checkpoint=",
    "openai:m",
    "words=",
    "low=",
    "%00",
    "%2F",
    "%ff",
)
SPECS = KINDS | st.builds("{}:http://{}?{}".format, st.sampled_from(("vllm", "verdict", "classify")), KINDS, KINDS)
ALLOWED = AllowedCritics({"mine": "uniform"}, hosts=["*", "10.0.0.0/8", "host:8000"])

TEXT_PARSERS = [
    Parser("critic of a call", of_text(lambda spec: parse_critic(spec, trusted=False)), SPECS, (ConfigurationError,)),
    Parser("critic of a request", of_text(ALLOWED.parse), SPECS, (ConfigurationError,)),
    Parser("allowed host", of_text(lambda host: AllowedCritics(hosts=[host])), KINDS, (ConfigurationError,)),
    text_parser("judge's number", ZERO_SHOT.read, "Score:", "Score: 0.5", "score", "Score: 1.", errors=(ValueError,)),
    text_parser("foa's number", FOA.read, "The correctness score is", "The correctness score is 7",
                errors=(ValueError,)),
    text_parser("judge's structured answer", lambda text: read_structured(FOA, text), '{"analysis": "', '"score": ',
                '{"analysis": "a", "score": 7}', "7", "}", '"', "7.0", "true", errors=(ValueError,)),
    text_parser("verdict in words", before_verdict, "This step is ", "GOOD", "BAD", "This step is GOOD."),
    text_parser("imagined step", read_imagined, "Observation:", "Reflection:", "Thought:", "Action:", "GOOD"),
    text_parser("goals", lambda text: read_goals(text, 2), "Goal:", "Goal 1:", "Goal 2: b"),
    text_parser("critique's reply", read_reply, "Decision:", "KEEP", "REFINE", "Thought:", "Action:"),
    text_parser("likelihoods", lambda text: read_likelihoods(text, 2), "1:", "2:", "0.5", "1: .5", "2: 1.0"),
    text_parser("choice", lambda text: read_choice(text, 3), "Choice:", "Choice: 2"),
    text_parser("regret", estimates._number_after(estimates.REGRET_IS, 0.0), "Expected regret:", "0.5", "e9"),
    text_parser("role's answer", lambda text: after(text, "Posterior:"), "Posterior:", "Beta(1, 2)"),
    text_parser("role's step", read_step, "Action:", "Action: go", "Thought:"),
    text_parser(
        "prior", parse_prior, "Beta(", "Dirichlet(", "Uniform over {", "}", ")", "a: Beta(1, 2)", "2",
        errors=(ConfigurationError,),
    ),
    text_parser("hypothesis", read_hypothesis, "{", "}", '"a": ', '{"a": 0.5}', errors=(ConfigurationError,)),
    Parser(
        "hypothesis under a prior",
        of_text(lambda text: impossible("a: Beta(1, 2)\nb: Dirichlet(x: 1, y: 1)", text)),
        mutated({"a": 0.5, "b": {"x": 0.5, "y": 0.5}}).map(json.dumps),
    ),
    text_parser(
        "experience", read_experience, "Step 1\n", "Action: a\n", "Observation: b\n", "Reward: 1\n", "  ",
        "Step 1\nAction: a\nObservation: b\n", "Step 1\nAction: a\nObservation: b\nReward: ",
        errors=(ConfigurationError,),
    ),
    text_parser("posterior", lambda text: dropped_statements(text, text[::2]), "arm A ", "is 0.5. ", "never"),
    text_parser("turn", split_turn, "Thought:", "Reflection:", "Action:"),
    text_parser("tool calls of an action", called_tools, '{"name": "a"}', "[", "{", '"name"'),
    text_parser(
        "crafting instruction", parse_instruction, "Crafting commands:\n", "craft 1 a using 1 b\n", "\nGoal: craft a.",
        "craft 2 b using 1 a, 1 c", errors=(ConfigurationError,),
    ),
]  # fmt: skip


def posterior_record(value: Any, folder: Path) -> Any:
    item = SimpleNamespace(namespace=("a",), key="k", value=value)
    return store._parsed(store._VERSION, item)  # type: ignore[arg-type]


def messages(blocks: Any, folder: Path) -> Any:
    """Content, tool calls and reasoning as a model's package might report them."""
    try:
        answer = AIMessage(**blocks)
    except Exception:  # LangChain's own checks refuse it
        return None
    return trajectory_from_messages([HumanMessage("do it"), answer, ToolMessage("done", tool_call_id="1")])


def dataset(rows: Any, folder: Path) -> Any:
    """A shard whose columns have other types and missing values."""
    arrow, parquet = pyarrow_or_error()
    try:
        parquet.write_table(arrow.Table.from_pylist(rows), folder / "trajectories-00000.parquet")
    except Exception:  # Arrow itself refuses the columns
        return None
    return [(record.trajectory.return_, record.commit_tools) for record in read_records(folder)]


def log_source(kind: str) -> Callable[[Any, Path], Any]:
    """Import the whole file into a dataset, so that what is read is also written."""

    def load(path: Path) -> Any:
        rule = Outcomes(reward="metadata.score")
        report = import_logs(path, path.parent / "data", outcomes=rule, reading=Reading(turns="each"))
        return report.trajectories

    return in_file(f"{kind}.json", load)


def harbor_trial(parts: Any, folder: Path) -> Any:
    """A folder of a Harbor job with one trial, of which one of two files is hostile."""
    (folder / "trial" / "agent").mkdir(parents=True)
    for name, content in zip(("result.json", "agent/trajectory.json"), parts, strict=True):
        (folder / "trial" / name).write_bytes(content)
    return import_logs(folder / "trial", folder / "data").trajectories


def eval_archive(parts: Any, folder: Path) -> Any:
    """A log of inspect_ai with a hostile sample, cut off or changed somewhere."""
    sample, size, place = parts
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", json.dumps(INSPECT))
        archive.writestr("samples/s_epoch_1.json", sample)
    content = bytearray(packed.getvalue()[: size or None])
    if place is not None:
        content[place % len(content)] ^= 0xFF
    (folder / "a.eval").write_bytes(content)
    return import_logs(folder / "a.eval", folder / "data").trajectories


MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "a lamp"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "stock", "arguments": '{"item": "lamp"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "3"},
    {"role": "assistant", "content": "three lamps"},
]
CHAT = {"id": "t1", "messages": MESSAGES, "metadata": {"score": 0.5}}
ATIF = {
    "session_id": "s",
    "metadata": {"score": 1},
    "steps": [
        {"source": "user", "message": "a lamp"},
        {
            "source": "agent",
            "message": [{"text": "x"}],
            "reasoning_content": "hm",
            "tool_calls": [{"function_name": "stock", "arguments": {"item": "lamp"}, "tool_call_id": "c"}],
            "observation": {"results": [{"source_call_id": "c", "content": "3"}]},
        },
        {"source": "agent", "message": "three"},
    ],
}
LANGSMITH = {
    "id": "r1",
    "dotted_order": "1",
    "run_type": "chain",
    "status": "success",
    "metadata": {"score": True},
    "inputs": {"messages": MESSAGES[:1]},
    "outputs": {"messages": MESSAGES},
    "extra": {"metadata": {"thread_id": "t"}},
    "feedback_stats": {"score": {"avg": 0.5}},
}
SPAN = {
    "context": {"trace_id": "1", "span_id": "2"},
    "start_time": "2026-01-01",
    "attributes": {
        "gen_ai.operation.name": "chat",
        "gen_ai.conversation.id": "t",
        "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": "a lamp"}]}]),
        "gen_ai.output.messages": [{"role": "assistant", "parts": [{"type": "text", "content": "three"}]}],
    },
    "events": [{"attributes": {"gen_ai.evaluation.name": "score", "gen_ai.evaluation.score.value": 0.5}}],
}
OTLP = {
    "resourceSpans": [
        {
            "scopeSpans": [
                {
                    "spans": [
                        {
                            "traceId": "1",
                            "startTimeUnixNano": "12",
                            "attributes": [
                                {"key": "openinference.span.kind", "value": {"stringValue": "LLM"}},
                                {"key": "llm.input_messages.0.message.role", "value": {"stringValue": "user"}},
                                {"key": "llm.input_messages.0.message.content", "value": {"stringValue": "a lamp"}},
                                {"key": "llm.output_messages.0.message.role", "value": {"stringValue": "assistant"}},
                                {
                                    "key": "llm.output_messages.0.message.contents.0.message_content.text",
                                    "value": {"stringValue": "three"},
                                },
                                {"key": "n", "value": {"arrayValue": {"values": [{"intValue": "1"}]}}},
                            ],
                        }
                    ]
                }
            ]
        }
    ]
}
MAPPED = {"traceId": "1", "startTimeUnixNano": "12", "endTimeUnixNano": 13, "attributes": SPAN["attributes"]}
SAMPLE = {
    "id": "s", "epoch": 1, "uuid": "u", "messages": MESSAGES, "scores": {"a": {"value": "C"}}, "limit": None,
    "model_usage": {"m": {"total_tokens": 3, "total_cost": 0.5}}, "started_at": "2026-01-01",
}  # fmt: skip
INSPECT = {"version": 2, "status": "success", "eval": {"task": "t", "run_id": "r"}, "samples": [SAMPLE]}
CLAUDE_CODE = [
    {
        "type": role, "sessionId": "s", "uuid": str(number), "parentUuid": str(number - 1), "timestamp": "2026-01-01",
        "message": {"role": role, "content": content, "id": f"m{number // 2}", "usage": {"input_tokens": 3}},
    }
    for number, (role, content) in enumerate([
        ("user", "a lamp"), ("assistant", [{"type": "tool_use", "id": "t", "name": "stock", "input": {}}]),
        ("user", [{"type": "tool_result", "tool_use_id": "t", "content": "3"}]),
        ("assistant", [{"type": "text", "text": "three"}]),
    ])
]  # fmt: skip
CODEX = [
    {"type": kind, "timestamp": "2026-01-01", "payload": payload}
    for kind, payload in [
        ("session_meta", {"id": "s", "source": "cli"}),
        ("response_item", {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a lamp"}]}),
        ("event_msg", {"type": "user_message", "message": "a lamp"}),
        ("response_item", {"type": "function_call", "name": "stock", "arguments": "{}", "call_id": "c"}),
        ("response_item", {"type": "function_call_output", "call_id": "c", "output": "3"}),
        ("response_item", {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "3"}]}),
        ("event_msg", {"type": "token_count", "info": {"total_token_usage": {"total_tokens": 9}}}),
    ]
]
SWE = {
    "trajectory_format": "mini-swe-agent-1.1", "instance_id": "a", "info": {"model_stats": {"instance_cost": 0.5}},
    "messages": [
        MESSAGES[0], {**MESSAGES[3], "extra": {"response": {"created": 1, "usage": {"total_tokens": 2}}}},
        {"role": "exit", "content": ""},
    ],
}  # fmt: skip
TRIAL = {
    "task_name": "t", "trial_name": "t__1",
    "agent_result": {"n_input_tokens": 1, "n_output_tokens": 2, "cost_usd": 0.5},
    "verifier_result": {"rewards": {"reward": 1}}, "agent_execution": {"started_at": "a", "finished_at": "b"},
}  # fmt: skip
LOGS = {"chat": CHAT, "atif": ATIF, "langsmith": LANGSMITH, "span": SPAN, "otlp": OTLP, "mapped span": MAPPED,
        "inspect_ai": INSPECT, "mini-swe-agent": SWE}  # fmt: skip
SESSIONS = {"Claude Code": CLAUDE_CODE, "Codex": CODEX}
RESULTS = [
    {"instances": [{"instance_id": "a", "resolved": True}]}, {"resolved_ids": ["a"], "unresolved_ids": ["b"]}, ["a"],
    {"a": {"resolved": True}}, {"no_logs": [], "resolved": ["a"]},
]  # fmt: skip

ROW = {
    "task_id": "a/1",
    "instruction": "do it",
    "done": True,
    "return": 1.0,
    "group": 0,
    "policy": "p",
    "seed": 1,
    "settings": json.dumps({"commit_tools": ["a"]}),
    "steps": [{"action": "a", "observation": "b", "thought": "", "reward": 0.5, "message_ids": ["1"]}],
}
ANSWER = {
    "content": [{"type": "text", "text": "a"}, {"type": "reasoning", "reasoning": "b"}],
    "tool_calls": [{"name": "a", "args": {"x": 1}, "id": "1", "type": "tool_call"}],
    "additional_kwargs": {"reasoning_content": "c"},
    "id": "m1",
}
VERSION = {"amc_posterior": 1, **asdict(Version("arm A is best.", "evidence", "p", evidence=Evidence("1", "saw")))}
CONFIG = (
    'critic = "uniform"\n',
    'on_critic_error = "raise"\n',
    "[amc]\n",
    "n_particles = 4\n",
    'n_particles = "4..8"\n',
    "resample = {at_steps = [1, 2]}\n",
    "resample = {ess_below = 0.5}\n",
    "beta = 0.1\n",
    "seed = 1\n",
    "quorum = 2\n",
    "[policy]\n",
    'model = "m"\n',
    'base_url = "http://host"\n',
    "temperature = 0.5\n",
    '[prices."m"]\n',
    "input = 1\n",
    "output = nan\n",
    "horizon = 99999999999999999999\n",
    "stop_at = inf\n",
    "[embeddings]\n",
    "a.b.c = 1\n",
    "[[amc]]\n",
    "1979-05-27\n",
    "select = ",
)
SHIPPED = model_folder("crafting")


def saved(path: str) -> Any:
    """A shipped checkpoint with fewer and shorter golden prompts."""
    plain = json.loads((SHIPPED / path).read_text())
    golden = [
        {**entry, "segments": entry["segments"][:2], "token_ids": entry["token_ids"][:4]}
        for entry in plain["golden"][:1]
    ]
    return {**plain, "golden": golden, "settings": {}, "metrics": {}}


SAVED_VALUE, SAVED_VERDICT = saved("value/amc_value.json"), saved("verdict/amc_verdict.json")
CALIBRATIONS = (
    {"kind": "isotonic", "value": [0.0, 1.0], "calibrated": [0.0, 1.0]},
    {"kind": "logistic", "slope": 1.0, "intercept": 0.0, "low": 0.0, "high": 1.0},
)

FILE_PARSERS = [
    Parser("config TOML", in_file("amc.toml", Config.load), texts(*CONFIG), (ConfigurationError,)),
    Parser(
        "JSON file",
        in_file("a.json", lambda path: read_json_object(path, remedy="write it again")),
        bodies({"a": 1}),
        (CheckpointError,),
    ),
    Parser(
        "value checkpoint",
        in_file("amc_value.json", lambda path: ValueCheckpoint.load(path.parent)),
        bodies(SAVED_VALUE),
        (CheckpointError,),
    ),
    Parser(
        "verdict checkpoint",
        in_file("amc_verdict.json", lambda path: VerdictCheckpoint.load(path.parent)),
        bodies(SAVED_VERDICT),
        (CheckpointError,),
    ),
    Parser(
        "goal checkpoint",
        in_file("amc_goal.json", lambda path: GoalCheckpoint.load(path.parent)),
        bodies({"kind": "amc-goal", "version": 1, "embeddings": "hashed:8"}),
        (CheckpointError,),
    ),
    Parser(
        "calibration", lambda value, folder: calibration_from_json(value), mutated(*CALIBRATIONS), (CheckpointError,)
    ),
    Parser("posterior record", posterior_record, mutated(VERSION), (PosteriorError,)),
    Parser("messages", messages, mutated(ANSWER)),
    Parser("dataset rows", dataset, mutated([ROW, ROW]), (CheckpointError,)),
    Parser(
        "outcomes CSV",
        in_file("a.csv", read_outcomes),
        texts("thread_id,value\n", "a,1\n", "b,true\n", '"', ",", "x"),
        (CheckpointError,),
    ),
    *(
        Parser(f"{name} logs", log_source(name), bodies([record, record]) | bodies(record), (CheckpointError,))
        for name, record in LOGS.items()
    ),
    *(Parser(f"{name} logs", log_source(name), bodies(lines), (CheckpointError,)) for name, lines in SESSIONS.items()),
    Parser(
        "trial of Harbor",
        harbor_trial,
        st.tuples(bodies(TRIAL), st.just(json.dumps(ATIF).encode()))
        | st.tuples(st.just(json.dumps(TRIAL).encode()), bodies(ATIF)),
        (CheckpointError,),
    ),
    Parser(
        "archive of inspect_ai",
        eval_archive,
        st.tuples(bodies(SAMPLE), st.just(0), st.none())
        | st.tuples(st.just(json.dumps(SAMPLE)), st.integers(1, 800), st.none() | st.integers(0, 800)),
        (CheckpointError,),
    ),
    Parser("results of SWE-bench", in_file("a.json", read_outcomes), bodies(*RESULTS), (CheckpointError,)),
]

LOOP = asyncio.Runner()
"""An event loop for all examples, since its start takes longer than an example."""
STATE = Trajectory(Task("", "do it"), (Step("a", "b"),))
MODELS = {"object": "list", "data": [{"id": "m", "root": "m", "max_model_len": 4096}]}


def answers(use: Callable[[httpx.MockTransport], Any]) -> Callable[[Any, Path], Any]:
    """Use a client whose server answers with the input, and to `/v1/models` with a model's card."""

    def run(body: Any, folder: Path) -> Any:
        models, content = body

        def respond(request: httpx.Request) -> httpx.Response:
            if request.url.path == "/v1/models":
                return httpx.Response(200, content=models)
            return httpx.Response(200, content=content)

        return LOOP.run(use(httpx.MockTransport(respond)))

    return run


def server(transport: httpx.MockTransport) -> ModelServer:
    return ModelServer("http://host", retry_for=0, transport=transport)


async def classify(transport: httpx.MockTransport) -> Any:
    return await ClassifierCritic("http://host", retry_for=0, transport=transport).values([STATE])


async def verdict(transport: httpx.MockTransport) -> Any:
    reader = CompletionsReader(server(transport), tokenize=lambda text: tuple(text.encode()))
    return (await reader.read([(DIALOGUE.opening, "?")], ("G", "B"))).log_odds


async def embed(transport: httpx.MockTransport) -> Any:
    return await ServerEmbeddings(server(transport), "m").embed(["a"])


def chat_logprobs(metadata: Any, folder: Path) -> Any:
    """A chat model of OpenAI's form."""
    answer = AIMessage("GOOD", response_metadata={"logprobs": metadata})
    reader = TopKReader(ScriptedChatModel(respond=lambda messages: answer))
    return LOOP.run(reader.read([("a", "b")], ("GOOD", "BAD"))).log_odds


def served(*documents: Any) -> st.SearchStrategy[tuple[bytes, bytes]]:
    """(the list of models, an answer); at most one of them is hostile."""
    whole = json.dumps(MODELS).encode()
    answer = json.dumps(documents[0]).encode()
    return st.tuples(st.just(whole), bodies(*documents)) | st.tuples(bodies(MODELS), st.just(answer))


USAGE = {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}}
SCORES = {"data": [{"index": 0, "probs": [0.5], "label": "a"}], "usage": USAGE}
ODDS = {
    "choices": [{"index": 0, "logprobs": {"top_logprobs": [{"token_id:71": -0.1, "token_id:66": -2.0}]}}],
    "usage": USAGE,
}
TOP = {
    "content": [
        {
            "token": "GOOD",
            "logprob": -0.1,
            "top_logprobs": [{"token": "GOOD", "logprob": -0.1}, {"token": "BAD", "logprob": -3.0}],
        }
    ]
}
VECTORS = {"data": [{"index": 0, "embedding": [0.5, 0.25]}], "usage": USAGE}

HTTP_PARSERS = [
    Parser("answer of a classifier", answers(classify), served(SCORES), (CriticError,)),
    Parser("answer of vLLM's completions", answers(verdict), served(ODDS), (CriticError,)),
    Parser("answer of embeddings", answers(embed), served(VECTORS), (CriticError,)),
    Parser("log-probabilities of a chat API", chat_logprobs, mutated(TOP), (CriticError,)),
]

PARSERS = [*TEXT_PARSERS, *FILE_PARSERS, *HTTP_PARSERS]
assert all(issubclass(error, AmcError | ValueError) for parser in PARSERS for error in parser.errors)
