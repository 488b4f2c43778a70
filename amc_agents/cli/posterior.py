"""`amc posterior show | diff | edit | rollback`: the owner's view of what an agent has come to believe."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from amc_agents.cli.printable import echo

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore

    from amc_agents.psrl.posterior.store import StorePosterior
    from amc_agents.psrl.posterior.updates import Evidence, Version

T = TypeVar("T")

posterior_app = typer.Typer(
    no_args_is_help=True,
    help="What an agent has come to believe: look at it, edit it, go back. STORE is the SQLite file or the "
    "postgresql:// address of a LangGraph store.",
)

Store = Annotated[str, typer.Argument(help="A SQLite file, or an address that begins with postgresql://.")]
Namespace = Annotated[str, typer.Argument(help="Labels with dots between them, such as agents.lock.")]
Note = Annotated[str, typer.Option(help="Why, for the history.")]


@posterior_app.command()
def show(
    store: Store,
    namespace: Annotated[str | None, typer.Argument(help="Without: the namespaces that there are.")] = None,
    version: Annotated[str, typer.Option(help="A number or an id. Default: the head.")] = "",
    history: Annotated[bool, typer.Option("--history", help="All versions, instead of one.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """The posterior as it is now, or as it was, and what has not been applied to it."""
    if namespace is None:
        from amc_agents.psrl.posterior.store import posteriors_in

        names = _in_store(store, posteriors_in)
        return echo(_json(names) if as_json else "\n".join(names) or "no posterior yet")
    if history:
        versions, used = _with(store, namespace, _all_versions)
        if as_json:
            return echo(_json([{**_plain(one), "in_use": one.id in used} for one in versions]))
        return echo("\n".join(_line(one, one.id in used) for one in versions))

    async def look(memory: StorePosterior) -> tuple[Version, list[Evidence]]:
        return await (memory.get(version) if version else memory.head()), list(await memory.pending())

    one, pending = _with(store, namespace, look)
    if as_json:
        return echo(_json({**_plain(one), "pending": [_plain(left) for left in pending]}))
    echo(one.text)
    echo(f"\n{_line(one)}", err=True)
    for statement in one.dropped:
        echo(f"dropped from the version before, as far as the guard can tell: {statement}", err=True)
    for left in pending:
        echo(f"not applied yet: episode {left.episode}, {left.observation}", err=True)


@posterior_app.command("diff")
def diff_(
    store: Store,
    namespace: Namespace,
    old: Annotated[str, typer.Argument(help="A number or an id. Default: what the new one started from.")] = "",
    new: Annotated[str, typer.Argument(help="A number or an id. Default: the head.")] = "",
) -> None:
    """What changed between two versions; without them, what the last change was."""
    from amc_agents.psrl.posterior.updates import diff

    async def both(memory: StorePosterior) -> tuple[Version, Version]:
        after = await (memory.get(new) if new else memory.head())
        return await memory.get(old or after.parent or after.id), after

    before, after = _with(store, namespace, both)
    echo(diff(before, after) or f"versions {before.number} and {after.number} have the same text")
    echo(_line(after), err=True)


@posterior_app.command()
def edit(
    store: Store,
    namespace: Namespace,
    file: Annotated[
        Path | None, typer.Option(help="The new text, - for the standard input. Default: an editor opens.")
    ] = None,
    parent: Annotated[
        str, typer.Option(help="The version that FILE was made from, a number or an id. Default: the head.")
    ] = "",
    note: Note = "",
) -> None:
    """Change the posterior by hand. What is observed while the editor is open is applied to your text afterwards."""
    from amc_agents.psrl.posterior import updates as posterior

    async def opened(memory: StorePosterior) -> Version:
        return await (memory.get(parent) if parent else memory.head())

    before = _with(store, namespace, opened)
    text = (_edited(before.text) if file is None else _read(file)).rstrip()
    if text == before.text.rstrip():
        return echo(f"nothing changed since version {before.number}")
    try:
        after = _with(store, namespace, lambda memory: posterior.edit(memory, text, parent=before.id, note=note))
    except BaseException:
        if file is None:
            echo(f"your text is kept in {_kept(text)}", err=True)
        raise
    echo(posterior.diff(before, after))
    echo(_line(after), err=True)


@posterior_app.command()
def rollback(
    store: Store,
    namespace: Namespace,
    version: Annotated[str, typer.Argument(help="The version to return to, a number or an id.")],
    note: Note = "",
) -> None:
    """Return to an earlier text. The versions between stay in the history, and their evidence is not applied again."""
    from amc_agents.psrl.posterior import updates as posterior

    async def back(memory: StorePosterior) -> tuple[Version, Version]:
        return await memory.head(), await posterior.rollback(memory, version, note=note)

    before, after = _with(store, namespace, back)
    echo(posterior.diff(before, after) or f"that is the text already, of version {before.number}")
    echo(_line(after), err=True)


def _with(store: str, namespace: str, work: Callable[[StorePosterior], Awaitable[T]]) -> T:
    async def on_it(opened: BaseStore) -> T:
        from amc_agents.psrl.posterior.store import StorePosterior

        return await work(StorePosterior(opened, namespace))

    return _in_store(store, on_it)


def _in_store(store: str, work: Callable[[BaseStore], Awaitable[T]]) -> T:
    import asyncio

    async def run(opened: BaseStore) -> T:
        return await work(opened)

    with (_postgres if store.startswith(("postgresql://", "postgres://")) else _sqlite)(store) as opened:
        return asyncio.run(run(opened))


@contextmanager
def _sqlite(path: str) -> Iterator[BaseStore]:
    import sqlite3

    from amc_agents.errors import MissingExtra, PosteriorError

    try:
        from langgraph.store.sqlite import SqliteStore
    except ImportError as error:
        raise MissingExtra("langgraph-checkpoint-sqlite", "sqlite") from error
    if not Path(path).is_file():
        raise PosteriorError(f"there is no file {path}: expected a SQLite file of a LangGraph store")
    try:
        with SqliteStore.from_conn_string(path) as store:
            # Setting a store up would make its tables in whatever file this is.
            tables = {name for (name,) in store.conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not {"store", "store_migrations"} <= tables:
                there = ", ".join(sorted(tables)) or "no tables"
                raise PosteriorError(f"{path} is no LangGraph store: expected a table store, and it has {there}")
            yield store
    except sqlite3.Error as error:
        raise PosteriorError(f"{path} cannot be used as a SQLite file: {error}") from error


@contextmanager
def _postgres(address: str) -> Iterator[BaseStore]:
    from importlib import import_module

    from amc_agents.errors import MissingExtra, PosteriorError

    try:
        psycopg: Any = import_module("psycopg")
        postgres: Any = import_module("langgraph.store.postgres")
    except ImportError as error:
        raise MissingExtra("langgraph-checkpoint-postgres", "postgres") from error
    try:
        with postgres.PostgresStore.from_conn_string(address) as store:
            yield store
    except psycopg.errors.UndefinedTable as error:
        raise PosteriorError("this database has no LangGraph store: expected its table, store") from error
    except psycopg.Error as error:
        # The address may hold a password, so it is not said.
        raise PosteriorError(f"the Postgres store cannot be used: {' '.join(str(error).split())}") from error


async def _all_versions(memory: StorePosterior) -> tuple[list[Version], set[str]]:
    return list(await memory.versions()), {one.id for one in await memory.history()}


def _edited(text: str) -> str:
    import click

    edited = click.edit(text, extension=".txt")
    return text if edited is None else edited


def _kept(text: str) -> str:
    from tempfile import NamedTemporaryFile

    with NamedTemporaryFile("w", encoding="utf-8", prefix="posterior-", suffix=".txt", delete=False) as file:
        file.write(text)
    return file.name


def _read(file: Path) -> str:
    import sys

    from amc_agents.errors import PosteriorError

    if str(file) == "-":
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PosteriorError(f"the new text cannot be read from {file}: {error}") from error


def _line(one: Version, used: bool = True) -> str:
    what: str = one.cause
    if one.evidence is not None:
        what = f"evidence of episode {one.evidence.episode}"
    elif one.restores is not None:
        what = f"rollback to {one.restores}"
    told = [f"version {one.number} ({one.id})", what, one.made_at]
    told += [f"started from {one.parent}"] * (not used) + ["not in use"] * (not used)
    told += [f"dropped {len(one.dropped)}"] * bool(one.dropped) + [one.note] * bool(one.note)
    return ", ".join(told)


def _plain(one: Version | Evidence) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(one)


def _json(value: Any) -> str:
    import json

    return json.dumps(value, indent=2, ensure_ascii=False)
