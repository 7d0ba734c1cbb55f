"""Help that fits a screen and comes at once.

``--help`` of a command leaves out what is seldom wanted, and ``--help-all`` does not. A command is imported when it is
looked up, not when its group lists it.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from thinpipe import arguments
from thinpipe.errors import ArgumentError, MissingPackageError

MORE = "More options"
"""The panel of the options that only ``--help-all`` shows; the generated page of commands has them all."""

_Value = TypeVar("_Value")
_ALL = "thinpipe.help.all"
_Function = TypeVar("_Function", bound=Callable[..., Any])


class Command(TyperCommand):
    """A command whose help has paragraphs of the screen's width, and leaves out the options of the panel ``MORE``.

    Lines of a paragraph that begins with a dash stay apart: they are a list.
    """

    def __init__(self, name: str | None, *, help: str | None = None, **words: Any) -> None:
        super().__init__(name, help=None if help is None else flowing(help), **words)

    def invoke(self, ctx: Any) -> Any:
        """Runs the command; packages that are missing for it are named in one line."""
        try:
            return super().invoke(ctx)
        except MissingPackageError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(1) from error

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Prints the help, all of it if ``--help-all`` asked for it."""
        with self._brief(everything=ctx.meta.get(_ALL, False)):
            super().format_help(ctx, formatter)

    @contextmanager
    def _brief(self, *, everything: bool) -> Iterator[None]:
        # They are not hidden for good, since what is hidden is not on the generated page, either.
        options = [option for option in self.params if isinstance(option, TyperOption)]
        seldom = [] if everything else [option for option in options if option.rich_help_panel == MORE]
        for option in seldom:
            option.hidden = True
        try:
            yield
        finally:
            for option in seldom:
                option.hidden = False


@dataclass(frozen=True)
class Later:
    """A command that is imported when it is looked up.

    Args:
        path: of its function, or of its ``App``, as ``thinpipe.train.command:train_command``.
        summary: the first paragraph of its help, which its group lists without importing it.
    """

    path: str
    summary: str

    def load(self, name: str) -> Any:
        """Imports the command."""
        module, _, attribute = self.path.partition(":")
        found = getattr(importlib.import_module(module), attribute)
        if not isinstance(found, App):
            app = App()
            app.command(name)(found)
            return get_command(app)
        group = get_command(found)
        group.name = name
        return group


class _Commands(MutableMapping[str, Any]):
    """The commands of a group by their names; those that were not looked up yet are ``Later``."""

    def __init__(self, commands: Mapping[str, Any]) -> None:
        self._found = dict(commands)

    def __getitem__(self, name: str) -> Any:
        if isinstance(found := self._found[name], Later):
            found = self._found[name] = found.load(name)
        return found

    def __setitem__(self, name: str, command: Any) -> None:
        self._found[name] = command

    def __delitem__(self, name: str) -> None:
        del self._found[name]

    def __contains__(self, name: object) -> bool:
        return name in self._found

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def listed(self, name: str) -> Any:
        """Finds a command, or one that has its summary in its stead."""
        found = self._found[name]
        return TyperCommand(name, help=found.summary) if isinstance(found, Later) else found


class Group(TyperGroup):
    """A group whose commands are imported when they are looked up."""

    later: Mapping[str, Later] = {}
    _lists = False

    def __init__(self, *, commands: Any = None, **words: Any) -> None:
        super().__init__(**words)
        self.commands = self._commands = _Commands({**self.later, **(commands or {})})

    def list_commands(self, ctx: Any) -> list[str]:
        """Lists the names, without importing anything."""
        return list(self._commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Finds a command; one with its summary alone while the help or the completions of the group are made."""
        if self._lists and cmd_name in self._commands:
            return self._commands.listed(cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Prints the help."""
        with self._listing():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Lists the commands that begin with a word."""
        with self._listing():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _listing(self) -> Iterator[None]:
        self._lists = True
        try:
            yield
        finally:
            self._lists = False


class App(typer.Typer):
    """A group of commands of that kind."""

    def __init__(self, **words: Any) -> None:
        self.later: dict[str, Later] = {}
        group = type("Group", (Group,), {"later": self.later})
        super().__init__(**{"cls": group, "rich_markup_mode": "rich", "add_completion": False, **words})

    def command(self, name: str | None = None, **words: Any) -> Callable[[_Function], _Function]:
        """Registers a command, as Typer does."""
        return super().command(name, **{"cls": Command, **words})


def checked(check: Callable[[str, Any], _Value]) -> Callable[[str], _Value]:
    """Makes of a check of arguments what reads the text of an option: a wrong one ends the command with status 2."""

    def value(text: str) -> _Value:
        try:
            return check("the value", text)
        except ArgumentError as error:
            raise typer.BadParameter(str(error)) from error

    return value


def _path(name: str, text: Any) -> Path:
    return Path(arguments.text(name, text))


def _finite(name: str, text: Any) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    return arguments.number(name, found if math.isfinite(found) else text)


a_path, a_folder, a_file, a_finite = map(checked, (_path, arguments.folder, arguments.file, _finite))
"""For ``typer.Option(parser=...)``: any path, a folder, a file to be written, a finite number of at least 0."""


def flowing(text: str) -> str:
    """Joins the lines of each paragraph, unless it is a list; Typer keeps them apart where the source did."""
    paragraphs = re.split(r"\n{2,}", text.strip())
    return "\n\n".join(each if each.startswith("- ") else " ".join(each.split()) for each in paragraphs)


def _show_all(context: typer.Context, *, wanted: bool) -> None:
    if wanted:
        context.meta[_ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


HelpAll: TypeAlias = Annotated[
    bool, typer.Option("--help-all", callback=_show_all, is_eager=True, help="Show the options used seldom, too.")
]
