"""Parameters of several commands: types of paths and numbers, and the store that a command works on.

One rule for the store: it is the argument PATH, unless the command has an argument of its own, as `rmq tail TOPIC`.
Each command also takes --store. Both are stronger than the environment variable RMQ_STORE. `rmq backup [STORE] TARGET`
is the one command with an argument for the store beside another one.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from rmq_store.cli.shared.times import DURATIONS, parse_duration
from rmq_store.errors import UsageError

STORE_VARIABLE: Final = "RMQ_STORE"
_ARGUMENT, _OPTION = "store_argument", "store_option"
STORE_PARAMETERS: Final = frozenset({"root", _ARGUMENT, _OPTION})
"""The names of the parameters that name the store of a command."""

OFFSET: Final = click.IntRange(0, (1 << 63) - 1)
"""A queue offset: what 64 bits hold."""

DAY_S: Final = 86_400
"""Seconds: nobody watches with longer pauses."""

_HELP: Final = "Directory of the store: the one that holds commitlog/."
_TEXT: Final = f"The same as PATH. {{}}  [env var: {STORE_VARIABLE}]"


class FiniteRange(click.FloatRange):
    """A FloatRange without NaN. No limit excludes NaN, because it is neither smaller nor larger than any number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Raises click.BadParameter."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is no number", param, ctx)
        return number


class Seconds(FiniteRange):
    """A number of seconds, or a duration with its unit, as `500ms` or `10m`. The command gets seconds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds. Raises click.BadParameter."""
        try:
            return super().convert(_seconds_of(value), param, ctx)
        except click.BadParameter as error:
            raise click.BadParameter(f"{error.message} Seconds are expected, or {DURATIONS}.", ctx, param) from error


def _seconds_of(value: Any) -> Any:
    """A duration in seconds; any other value as it is."""
    if not isinstance(value, str) or not value.strip()[-1:].isalpha():
        return value
    try:
        return parse_duration(value) / 1000
    except UsageError:
        return value


class LocalPath(click.Path):
    """A path, or a file: URI, as the options of the data source take it."""

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Raise click.BadParameter as `click.Path`, and for URIs of other file systems."""
        from rmq_store.arguments import local_path  # with `inspect`: too slow for --help

        try:
            value = local_path(value) if isinstance(value, str) else value
        except UsageError as error:
            raise click.BadParameter(str(error), ctx, param) from error
        return super().convert(value, param, ctx)


class NewFile(click.Path):
    """A file that the command writes. Its directory must exist, and take files."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Raise click.BadParameter, which names the directory."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        directory = path.parent
        if not directory.is_dir():
            what = "is no directory" if os.path.lexists(directory) else "does not exist; make it"
            self.fail(f"{path}: the directory {directory} {what}, or name a file somewhere else", param, ctx)
        if not os.access(directory, os.W_OK | os.X_OK):
            self.fail(f"{path}: you may not write into the directory {directory}; name a file elsewhere", param, ctx)
        return path


class StorePath(LocalPath):
    """The directory of a store, which must exist; the error says how to create one."""

    def __init__(self) -> None:
        super().__init__(exists=True, file_okay=False, path_type=Path)

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Raise click.BadParameter if it does not exist, or is no directory."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            if os.path.lexists(value):
                raise
            hint = "Check the path, or make a store: `rmq init`."
            raise click.BadParameter(f"{error.message} {hint}", error.ctx, error.param) from error


class _StoreArgument(click.Argument):
    """PATH. RMQ_STORE is not looked at if --store names the store: it may name a cluster."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """As click does; None beside --store. Parameters that are typed are processed before this one."""
        return None if ctx.params.get(_OPTION) is not None else super().resolve_envvar_value(ctx)


def store_options(
    kind: click.Path | None = None, *, is_required: bool = True, text: str = _HELP
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --store, and PATH where the command has no argument of its own: so this decorator is above those of the
    arguments. The command gets `root: Path`; None if no store is named and none `is_required`. `kind`: the type of the
    path; by default the directory must exist. `text`: the help of --store.

    Raises:
        click.MissingParameter: no store is named.
        click.UsageError: PATH and --store name two stores.
    """
    path_type = kind or StorePath()

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        if any(isinstance(param, click.Argument) for param in getattr(command, "__click_params__", ())):
            return click.option(
                "--store", "root", required=is_required, metavar="PATH", envvar=STORE_VARIABLE, show_envvar=True,
                type=path_type, help=text,
            )(command)  # fmt: skip

        @functools.wraps(command)
        def with_root(root: Path | None = None, **given: Any) -> Any:  # `root`: another command invokes this one
            argument, option = given.pop(_ARGUMENT), given.pop(_OPTION)
            root = root or _one_of(argument, option)
            if root is None and is_required:
                raise missing_store()
            return command(root=root, **given)

        argument = click.argument(
            _ARGUMENT, cls=_StoreArgument, metavar="PATH" if is_required else "[PATH]", required=False,
            envvar=STORE_VARIABLE, type=path_type,
        )  # fmt: skip
        option = click.option("--store", _OPTION, metavar="PATH", type=path_type, help=_TEXT.format(text))
        return argument(option(with_root))

    return add


def missing_store() -> click.UsageError:
    """The error of a command that needs a store, and of which the command line and the environment name none."""
    hint = f"'PATH' (env var: '{STORE_VARIABLE}')"
    return click.MissingParameter("Name the store by PATH or by --store", param_hint=hint, param_type="argument")


def named_store(context: click.Context) -> Path | str | None:
    """The store that the command line or the environment names, as far as it was parsed; None for a command over a
    cluster.
    """
    if not any(param.name in STORE_PARAMETERS for param in context.command.params):
        return None
    named = [context.params.get(name) for name in (_OPTION, "root", _ARGUMENT)]
    if any(param.name == _ARGUMENT for param in context.command.params):
        # click gives no argument its value if an option behind it has none yet.
        named += context.args[:1]
    return next((path for path in named if path), os.environ.get(STORE_VARIABLE) or None)


def is_typed(name: str) -> bool:
    """Whether a parameter of the command that runs is on the command line: that is stronger than a variable."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def is_store_typed() -> bool:
    """Whether PATH or --store is on the command line."""
    return is_typed(_ARGUMENT) or is_typed(_OPTION)


def _one_of(argument: Path | None, option: Path | None) -> Path | None:
    if None not in (argument, option) and is_typed(_ARGUMENT) and argument != option:
        raise click.UsageError(f"one store, but PATH is {argument}, and --store is {option}")
    return option or argument
