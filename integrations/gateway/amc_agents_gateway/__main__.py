"""The command `amc-gateway`."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from amc_agents.errors import AmcError
from amc_agents_gateway.callers import ANONYMOUS, Caller, digest, new_key
from amc_agents_gateway.config import GatewayConfig
from amc_agents_gateway.gateway import Gateway


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0, or 1 after an error, or 2 for wrong arguments."""
    asked = _parser().parse_args(arguments)
    try:
        status: int = asked.run(asked)
    except AmcError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "amc-gateway", description="An OpenAI-compatible server that offers LAC, PNLC and best-of-n as models."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="serve a configuration until SIGTERM or Ctrl-C")
    serve.add_argument("config", help="the TOML file")
    serve.add_argument("--host", help="address to listen on, instead of the file's")
    serve.add_argument("--port", type=int, help="port, instead of the file's")
    serve.set_defaults(run=_serve)
    check = commands.add_parser("check", help="read a configuration, build its critics, and list the models")
    check.add_argument("config", help="the TOML file")
    check.set_defaults(run=_check)
    key = commands.add_parser("new-key", help="make a key for a client, and its table for the configuration")
    key.add_argument("name", help="name of the client")
    key.set_defaults(run=_new_key)
    return parser


def _serve(asked: argparse.Namespace) -> int:
    from amc_agents_gateway.server import GatewayServer

    config = GatewayConfig.load(asked.config)
    given = {name: getattr(asked, name) for name in ("host", "port") if getattr(asked, name) is not None}
    config = config.model_copy(update={"server": config.server.model_copy(update=given)})
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # It would log every request to an upstream.
    server = GatewayServer(config)
    server.run()
    return 0 if server.started else 1


def _check(asked: argparse.Namespace) -> int:
    gateway = Gateway(GatewayConfig.load(asked.config))
    for model in gateway.models(Caller("", ANONYMOUS)):
        print(model)
    return 0


def _new_key(asked: argparse.Namespace) -> int:
    key = new_key().get_secret_value()
    print(f'# The key, which cannot be shown again: {key}\n[keys.{asked.name}]\nsha256 = "{digest(key)}"')
    return 0


if __name__ == "__main__":
    sys.exit(main())
