"""`amc serve value`, `amc serve policy`, `amc serve embeddings`: start a vLLM server with the right flags."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amc_agents.cli.output import AsJson, console_beside, echo, print_json
from amc_agents.errors import ServerError

if TYPE_CHECKING:
    from amc_agents.operations.serve import Role, ServedModel, VllmServer, Where

serve_app = typer.Typer(
    no_args_is_help=True,
    help="Start vLLM with the flags that a model needs, wait until it is ready, and print how to use it. "
    "The server's API key comes from VLLM_API_KEY.",
)

Model = Annotated[str, typer.Argument(metavar="MODEL", help="The model to serve.")]
Name = Annotated[str | None, typer.Option(help="Name of the model in requests. Default: the name of its folder.")]
Host = Annotated[str, typer.Option(help="Address to listen on. 0.0.0.0 listens on all interfaces.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on. 0 chooses a free port.")]
Dtype = Annotated[
    str | None, typer.Option(help="Number type of the weights. Default: the type in which the model was saved.")
]
MaxModelLen = Annotated[int | None, typer.Option(min=1, help="Maximum prompt length in tokens. Default: the model's.")]
TensorParallel = Annotated[int, typer.Option("--tensor-parallel-size", min=1, help="Number of GPUs for each copy.")]
DataParallel = Annotated[int, typer.Option("--data-parallel-size", min=1, help="Number of copies of the model.")]
Memory = Annotated[
    float | None,
    typer.Option("--gpu-memory-utilization", min=0.01, max=1.0, help="Share of GPU memory to use. Default: vLLM's."),
]
Python = Annotated[
    str | None,
    typer.Option(help="Python interpreter with vLLM. Default: $AMC_VLLM_PYTHON, otherwise this interpreter."),
]
Log = Annotated[Path | None, typer.Option(help="File for vLLM's log. Default: a file in the user's cache folder.")]
Timeout = Annotated[float, typer.Option(min=1, help="Maximum time in seconds until the server is ready.")]
Extra = Annotated[
    list[str] | None, typer.Argument(metavar="[-- VLLM FLAGS]", help="Further flags, passed to vLLM unchanged.")
]


def _command(role: Role, help: str) -> None:
    def serve(
        model: Model,
        extra: Extra = None,
        name: Name = None,
        host: Host = "127.0.0.1",
        port: Port = 8000,
        dtype: Dtype = None,
        max_model_len: MaxModelLen = None,
        tensor_parallel_size: TensorParallel = 1,
        data_parallel_size: DataParallel = 1,
        gpu_memory_utilization: Memory = None,
        python: Python = None,
        log: Log = None,
        timeout: Timeout = 1800,
        as_json: AsJson = False,
    ) -> None:
        from amc_agents.operations.serve import Where, served_model

        served = served_model(role, model, name=name)
        served = replace(served, dtype=dtype or served.dtype, max_tokens=max_model_len or served.max_tokens)
        where = Where(host, port, tensor_parallel_size, data_parallel_size, gpu_memory_utilization)
        _serve(served, where, extra or [], python, log, timeout, as_json=as_json)

    serve_app.command(role, help=help, epilog=f"Example: amc serve {role} crafting --port 8000")(serve)


_command("value", "Serve a value model (a folder from `amc train value`, or crafting), and print its critic string.")
_command(
    "policy",
    "Serve a generative model (a folder, a Hugging Face name, or crafting), and print its chat model.",
)
_command(
    "embeddings",
    "Serve an embedding model (a folder, a Hugging Face name, or crafting), and print its base URL.",
)


def _serve(
    model: ServedModel,
    where: Where,
    extra: list[str],
    python: str | None,
    log: Path | None,
    timeout: float,
    *,
    as_json: bool,
) -> None:
    from amc_agents.operations.serve import (
        VllmServer,
        cache_folder,
        chosen_port,
        command,
        environment,
        find_vllm,
        log_name,
    )

    where = replace(where, port=chosen_port(where.host, where.port))
    vllm = find_vllm(python)
    line = command(vllm, model, where, extra)
    log = log or cache_folder() / "logs" / log_name(model.name, where.port)
    server = VllmServer(line, environment(vllm, os.environ), where.url, log)
    console = console_beside(as_json)
    device = "the CPU" if vllm.device == "cpu" else vllm.device
    echo(f"Starting vLLM {vllm.version} on {device}: {model.source}\nIts log: {log}", err=as_json)
    with _forwarding_signals(server):
        server.start()
        with console.status("starting") as status:
            display = _StartupDisplay(console, status)
            ready = server.wait_until_healthy(timeout, display)
        if ready:
            usage = f"{_usage(model, where)}\n\nCtrl-C stops it."
            echo(f"Ready after {display.seconds:.0f} s at {where.url}\n\n{usage}", err=as_json)
            if as_json:
                print_json({"role": model.role, "model": model.name, "url": where.url, "log": log})
        ended = server.wait()
        if not server.stopping:
            raise ServerError(where.url, server.death(ended))
    echo("Stopped.", err=as_json)
    raise typer.Exit(ended if ended >= 0 else 128 - ended)


class _StartupDisplay:
    """Show the progress: one changing line on a terminal, otherwise a line every half minute."""

    def __init__(self, console: Any, status: Any) -> None:
        self._console, self._status = console, status
        self.seconds = 0.0
        self._next = 30.0

    def __call__(self, seconds: float, line: str) -> None:
        from rich.text import Text

        self.seconds = seconds
        short = line if len(line) <= 80 else line[:77] + "..."
        self._status.update(Text(f"starting, {seconds:.0f} s: {short}"))
        if not self._console.is_terminal and seconds >= self._next:
            echo(f"... {seconds:.0f} s: {short}", err=self._console.stderr)
            self._next += 30.0


@contextmanager
def _forwarding_signals(server: VllmServer) -> Iterator[None]:
    """Forward Ctrl-C and other signals to the server; this process ends after it."""

    def forward(number: int, frame: object) -> None:
        # vLLM does not stop at SIGHUP (the terminal was closed).
        server.stop(signal.SIGTERM if number == signal.SIGHUP else number)

    previous = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _usage(model: ServedModel, where: Where) -> str:
    from urllib.parse import quote

    name = quote(model.name, safe="/")
    if model.role == "value":
        critic = f"vllm:{where.url}?model={name}"
        usage = f"Critic:\n\n    {critic}\n\nTry it:\n\n    amc bench --critic '{critic}' --out RESULTS"
        if where.host in ("127.0.0.1", "localhost", "::1"):
            return usage
        return (
            f"{usage}\n\nFrom another machine, use this machine's name in the URL, and &checkpoint=FOLDER, a copy of\n"
            f"the small files of {model.source} (all except *.safetensors).\n\nvLLM requires no key for scoring "
            "(/classify): do not expose this port to machines that you do not trust."
        )
    if model.role == "policy":
        key = 'os.environ["VLLM_API_KEY"]' if os.environ.get("VLLM_API_KEY") else '"none"'
        return (
            "Chat model:\n\n    from langchain_openai import ChatOpenAI\n\n"
            f'    policy = ChatOpenAI(base_url="{where.url}/v1", model="{model.name}", api_key={key})'
        )
    return f"Embeddings: base URL {where.url}/v1, model {model.name}"
