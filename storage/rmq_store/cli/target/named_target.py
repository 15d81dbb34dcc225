"""The target that a command line or the environment names: a store, a cluster, or none.

    -n ns1:9876;ns2:9876    before or behind the command: a cluster
    --store rmq://ns1:9876  a cluster
    --store /data/store     a store
    RMQ_STORE               either, if the command line names none
    NAMESRV_ADDR            a cluster, if RMQ_STORE is not set either

So a typed target is stronger than the environment, and RMQ_STORE is stronger than the variable of RocketMQ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Final

import click

from rmq_store.cli.shared.parameters import STORE_VARIABLE
from rmq_store.cli.target.cluster_target import NAME_SERVER_VARIABLE, ClusterCommand, cluster_options
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.remoting.transport.settings import SCHEME

_SHORT: Final = "-n"
_NAMES: Final = (_SHORT, "--name-server", "--namesrvAddr")
REPLICA: Final = "replica"
"""The argument of a command before which a cluster may stand: `rmq follow rmq://ns1:9876 PATH`."""
REGISTERS: Final = "register_with"
"""The parameter of a command whose --name-server names no target: a broker registers there."""


@dataclass(slots=True)
class Named:
    """`clusters`: the texts that name one. `arguments`: those of the command, without these texts."""

    clusters: list[str] = field(default_factory=list)
    has_store: bool = False
    arguments: list[str] = field(default_factory=list)


@click.command(cls=ClusterCommand)
@cluster_options()
def _any_command() -> None:
    """Knows the options of every command over a cluster."""


def named(command: click.Command, arguments: Sequence[str]) -> Named:
    """The targets that arguments name. The options of the command are known, so no value is taken for an option."""
    found = Named()
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word == "--":
            found.arguments += [word, *words]
            break
        if word.startswith("-") and word != "-":
            _take_option(command, word, words, found)
            continue
        if isinstance(command, click.Group):
            command = command.get_command(click.Context(command), word) or command
        elif _takes_store(command) or (word.startswith(SCHEME) and _takes_replica(command)):
            if word.startswith(SCHEME):
                found.clusters.append(word)
                continue
            found.has_store = True
        found.arguments.append(word)
    return found


def of_environment(environment: Mapping[str, str]) -> tuple[str | None, bool]:
    """The cluster that the environment names, and whether RMQ_STORE names it. (None, False): no cluster."""
    text = environment.get(STORE_VARIABLE, "")
    if text:
        return (text, True) if text.startswith(SCHEME) else (None, False)
    return environment.get(NAME_SERVER_VARIABLE) or None, False


def _take_option(command: click.Command, word: str, words: list[str], found: Named) -> None:
    """Take an option and its value from the words."""
    name, sign, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
    taken = [word]
    option = _option_of(command, name)
    if not sign and words and _takes_value(option, words[0]):
        value = words.pop(0)
        taken.append(value)
    if option in command.params and option is not None and option.name == REGISTERS:
        found.arguments += taken
        return
    # `-n 100` of `rmq tail` is a number of messages; an address has a port, or is a URL.
    is_address = name in _NAMES and (":" in value or option is None or "--namesrvAddr" in option.opts)
    if is_address or (name == "--store" and value.startswith(SCHEME)):
        found.clusters.append(value)
        return
    found.has_store |= name == "--store"
    found.arguments += taken


def _option_of(command: click.Command, name: str) -> click.Option | None:
    for option in _options(command):
        if name in (*option.opts, *option.secondary_opts):
            return option
    return None


def _options(command: click.Command) -> Iterator[click.Option]:
    for known in (command, _any_command):
        yield from (param for param in known.params if isinstance(param, click.Option))


def _takes_value(option: click.Option | None, following: str) -> bool:
    if option is None:  # perhaps one that only the command over a cluster has, as `doctor --topic`
        return not following.startswith("-")
    if option.is_flag or option.count:
        return False
    # An option such as `--watch [SECONDS]` may stand without its value.
    return not (isinstance(option.flag_value, (str, int, float)) and following.startswith("-"))


def _takes_replica(command: click.Command) -> bool:
    return any(isinstance(param, click.Argument) and param.name == REPLICA for param in command.params)


def _takes_store(command: click.Command) -> bool:
    """Whether the first argument of the command names a store, as `rmq repair PATH`."""
    return any(isinstance(param, click.Argument) and param.envvar == STORE_VARIABLE for param in command.params)
