"""`amc posterior show | diff | edit | rollback`: the owner's access to what an agent believes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from amc_agents.cli.output import echo
from amc_agents.errors import MissingExtra, PosteriorError

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore

    from amc_agents.psrl.posterior.memory import Evidence, PosteriorMemory, Version

T = TypeVar("T")

posterior_app = typer.Typer(
    no_args_is_help=True,
    help="Show, edit and roll back what an agent believes. STORE is the SQLite file or the postgresql:// URL of a "
    "LangGraph store.",
)

Store = Annotated[str, typer.Argument(help="A SQLite file, or a URL that begins with postgresql://.")]
Namespace = Annotated[str, typer.Argument(help="Labels with dots between them, such as agents.lock.")]
Note = Annotated[str, typer.Option(help="Reason, for the history.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@posterior_app.command(epilog="Example: amc posterior show store.sqlite agents.lock")
def show(
    store: Store,
    namespace: Annotated[str | None, typer.Argument(help="Default: list the namespaces.")] = None,
    version: Annotated[str, typer.Option(help="A number or an id. Default: the head.")] = "",
    history: Annotated[bool, typer.Option("--history", help="List all versions.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the current posterior or an earlier version, and the observations that are not applied yet."""
    if namespace is None:
        return _show_namespaces(store, as_json)
    if history:
        return _show_history(store, namespace, as_json)

    async def read(memory: PosteriorMemory) -> tuple[Version, list[Evidence]]:
        return await (memory.get(version) if version else memory.head()), list(await memory.pending())

    shown, pending = _with(store, namespace, read)
    if as_json:
        return echo(_json({**asdict(shown), "pending": [asdict(evidence) for evidence in pending]}))
    echo(shown.text)
    echo(f"\n{_line(shown)}", err=True)
    for statement in shown.dropped:
        echo(f"probably dropped from the version before: {statement}", err=True)
    for evidence in pending:
        echo(f"not applied yet: episode {evidence.episode}, {evidence.observation}", err=True)


@posterior_app.command("diff", epilog="Example: amc posterior diff store.sqlite agents.lock 1 3")
def diff_command(
    store: Store,
    namespace: Namespace,
    old: Annotated[str, typer.Argument(help="A number or an id. Default: the parent of NEW.")] = "",
    new: Annotated[str, typer.Argument(help="A number or an id. Default: the head.")] = "",
    as_json: AsJson = False,
) -> None:
    """Show the difference between two versions. Default: the last change."""

    async def read(memory: PosteriorMemory) -> tuple[Version, Version]:
        after = await (memory.get(new) if new else memory.head())
        return await memory.get(old or after.parent or after.id), after

    before, after = _with(store, namespace, read)
    same = f"versions {before.number} and {after.number} have the same text"
    _print_change(before, after, same, as_json=as_json)


@posterior_app.command(epilog="Example: amc posterior edit store.sqlite agents.lock --file new.txt")
def edit(
    store: Store,
    namespace: Namespace,
    file: Annotated[
        Path | None, typer.Option(help="The new text, - for the standard input. Default: open an editor.")
    ] = None,
    parent: Annotated[
        str, typer.Option(help="The version that FILE is based on, a number or an id. Default: the head.")
    ] = "",
    note: Note = "",
    as_json: AsJson = False,
) -> None:
    """Edit the posterior. Observations made while the editor is open are applied to your text afterwards."""
    from amc_agents.psrl.posterior import updates

    async def read(memory: PosteriorMemory) -> Version:
        return await (memory.get(parent) if parent else memory.head())

    before = _with(store, namespace, read)
    text = (_edited(before.text) if file is None else _read(file)).rstrip()
    if text == before.text.rstrip():
        same = f"nothing changed since version {before.number}"
        return _print_change(before, before, same, as_json=True) if as_json else echo(same)
    try:
        after = _with(store, namespace, lambda memory: updates.edit(memory, text, parent=before.id, note=note))
    except BaseException:
        if file is None:
            echo(f"your text is saved in {_saved(text)}", err=True)
        raise
    _print_change(before, after, "", as_json=as_json)


@posterior_app.command(epilog="Example: amc posterior rollback store.sqlite agents.lock 3")
def rollback(
    store: Store,
    namespace: Namespace,
    version: Annotated[str, typer.Argument(help="The version to restore, a number or an id.")],
    note: Note = "",
    as_json: AsJson = False,
) -> None:
    """Restore an earlier text. Later versions stay in the history, and their observations are not applied again."""
    from amc_agents.psrl.posterior import updates

    async def restore(memory: PosteriorMemory) -> tuple[Version, Version]:
        return await memory.head(), await updates.rollback(memory, version, note=note)

    before, after = _with(store, namespace, restore)
    _print_change(before, after, f"version {before.number} already has this text", as_json=as_json)


def _print_change(before: Version, after: Version, same: str, *, as_json: bool) -> None:
    """Print the difference between two versions, or `same` if they have the same text."""
    from amc_agents.psrl.posterior.updates import diff

    changed = diff(before, after)
    if as_json:
        return echo(_json({"before": asdict(before), "after": asdict(after), "diff": changed}))
    echo(changed or same)
    echo(_line(after), err=True)


def _show_namespaces(store: str, as_json: bool) -> None:
    from amc_agents.psrl.posterior.store import posteriors_in

    names = _with_store(store, posteriors_in)
    echo(_json(names) if as_json else "\n".join(names) or "no posterior yet")


def _show_history(store: str, namespace: str, as_json: bool) -> None:
    async def read(memory: PosteriorMemory) -> tuple[list[Version], set[str]]:
        lineage = await memory.lineage()
        return list(lineage.versions), {version.id for version in lineage.chain}

    versions, used = _with(store, namespace, read)
    if as_json:
        echo(_json([{**asdict(version), "in_use": version.id in used} for version in versions]))
    else:
        echo("\n".join(_line(version, in_use=version.id in used) for version in versions))


def _with(store: str, namespace: str, work: Callable[[PosteriorMemory], Coroutine[Any, Any, T]]) -> T:
    from amc_agents.psrl.posterior.store import StorePosterior

    return _with_store(store, lambda opened: work(StorePosterior(opened, namespace)))


def _with_store(store: str, work: Callable[[BaseStore], Coroutine[Any, Any, T]]) -> T:
    import asyncio

    is_url = store.startswith(("postgresql://", "postgres://"))
    with (_postgres if is_url else _sqlite)(store) as opened:
        return asyncio.run(work(opened))


@contextmanager
def _sqlite(path: str) -> Iterator[BaseStore]:
    import sqlite3

    try:
        from langgraph.store.sqlite import SqliteStore
    except ImportError as error:
        raise MissingExtra("langgraph-checkpoint-sqlite", "sqlite") from error
    if not Path(path).is_file():
        raise PosteriorError(f"there is no file {path}: expected a SQLite file of a LangGraph store")
    try:
        with SqliteStore.from_conn_string(path) as store:
            # The store would create its tables in any SQLite file.
            tables = {name for (name,) in store.conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not {"store", "store_migrations"} <= tables:
                listed = ", ".join(sorted(tables)) or "no tables"
                raise PosteriorError(f"{path} is not a LangGraph store: expected a table named store, got {listed}")
            yield store
    except sqlite3.Error as error:
        raise PosteriorError(f"{path} cannot be used as a SQLite file: {error}") from error


@contextmanager
def _postgres(url: str) -> Iterator[BaseStore]:
    try:
        psycopg: Any = import_module("psycopg")
        postgres: Any = import_module("langgraph.store.postgres")
    except ImportError as error:
        raise MissingExtra("langgraph-checkpoint-postgres", "postgres") from error
    try:
        with postgres.PostgresStore.from_conn_string(url) as store:
            yield store
    except psycopg.errors.UndefinedTable as error:
        raise PosteriorError("this database has no LangGraph store: expected a table named store") from error
    except psycopg.Error as error:
        # The URL may contain a password, so the message leaves it out.
        raise PosteriorError(f"the Postgres store cannot be used: {' '.join(str(error).split())}") from error


def _edited(text: str) -> str:
    import click

    edited = click.edit(text, extension=".txt")
    return text if edited is None else edited


def _saved(text: str) -> str:
    with NamedTemporaryFile("w", encoding="utf-8", prefix="posterior-", suffix=".txt", delete=False) as file:
        file.write(text)
    return file.name


def _read(file: Path) -> str:
    if str(file) == "-":
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PosteriorError(f"the new text cannot be read from {file}: {error}") from error


def _line(version: Version, *, in_use: bool = True) -> str:
    cause: str = version.cause
    if version.evidence is not None:
        cause = f"evidence of episode {version.evidence.episode}"
    elif version.restores is not None:
        cause = f"rollback to {version.restores}"
    facts = [f"version {version.number} ({version.id})", cause, version.made_at]
    facts += [] if in_use else [f"started from {version.parent}", "not in use"]
    facts += [f"dropped {len(version.dropped)}"] if version.dropped else []
    facts += [version.note] if version.note else []
    return ", ".join(facts)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
