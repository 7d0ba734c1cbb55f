"""Help that fits a screen: commands whose ``--help`` leaves out what is seldom wanted, and ``--help-all`` does not."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import typer
from typer.core import TyperCommand, TyperOption

from thinpipe import arguments
from thinpipe.errors import ArgumentError

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


class App(typer.Typer):
    """A group of commands of that kind."""

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
