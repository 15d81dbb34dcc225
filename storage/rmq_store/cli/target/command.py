"""One declaration of a command for both targets, a store and a cluster.

    @target_command(short_help="...", epilog="\b\nExample:\n  rmq read Orders --store /data/rocketmq/store")
    @click.argument("topic", type=TOPIC)
    @by_target(click.option("--queue", type=int), click.option("--queue", metavar="BROKER:ID"))
    def read(target: Target, as_json: bool, topic: str, queue: int | str | None) -> None:
        '''Print messages of a topic. [cluster: A slave is read while its master does not answer.]'''

The function gets the `target` that the command line names. Options and texts are those of both targets, except for
`by_target`, and for the parts `[store: ...]` and `[cluster: ...]` of a text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rmq_store.cli.shared.output import common_options
from rmq_store.cli.target.cluster_target import ClusterCommand, cluster_options
from rmq_store.cli.target.store_target import StoreTarget

if TYPE_CHECKING:
    from rmq_store.cli.target.cluster_target import ClusterTarget
    from rmq_store.cli.target.view import Target

    # The type checker compares them with the protocol here.
    _TARGETS: tuple[type[Target], ...] = (StoreTarget, ClusterTarget)

Declared = TypeVar("Declared", bound=Callable[..., Any])
Decorator = Callable[[Any], Any]


class Side(StrEnum):
    """The two kinds of targets, as texts name them."""

    STORE = "store"
    CLUSTER = "cluster"


# Where click collects the parameters of a function, the last one first.
_PARAMETERS: Final = "__click_params__"
_OF_ONE_SIDE: Final = re.compile(r"\[(store|cluster): ([^\[\]]*)\]")
_STORE_OF_EXAMPLE: Final = re.compile(r" --store /\S+")


class TargetCommand(click.Command):
    """The command for a store, which knows how to make the one for a cluster."""

    over_cluster: Callable[[], click.Command]


def target_command(
    name: str | None = None, *, short_help: str, epilog: str = "", cluster_epilog: str | None = None,
    cluster_short_name: bool = True, store_is_required: bool = True,
) -> Callable[[Callable[..., None]], TargetCommand]:  # fmt: skip
    """Declare a command; it is above the other decorators. The function gets `target`, a `Target`, `as_json`, and its
    own parameters.

    Args:
        epilog: the examples for a store. `cluster_epilog`: those for a cluster, if they are not the same with `-n` in
            place of --store.
        cluster_short_name: False if -n means something else in this command, so that it names no cluster.
        store_is_required: False if `target` is None where neither a store nor a cluster is named. The command checks
            the path itself, which need not exist.
    """

    def declare(function: Callable[..., None]) -> TargetCommand:
        declared = getattr(function, _PARAMETERS, [])
        texts: dict[str, Any] = {"name": name or function.__name__.replace("_", "-")}

        def of_store(root: Path | None, **given: Any) -> None:
            function(target=None if root is None else StoreTarget(root), **given)

        def over_cluster() -> click.Command:
            examples = examples_over_cluster(epilog) if cluster_epilog is None else cluster_epilog
            given = _for_side(Side.CLUSTER, declared, function, short_help, examples)
            command = cluster_options(short_name=cluster_short_name)(_with_parameters(function, given.pop("params")))
            return click.command(cls=ClusterCommand, **texts, **given)(command)

        given = _for_side(Side.STORE, declared, function, short_help, epilog)
        command = common_options(_with_parameters(of_store, given.pop("params")), store_is_required=store_is_required)
        made = click.command(cls=TargetCommand, **texts, **given)(command)
        made.over_cluster = over_cluster
        return made

    return declare


def by_target(store: Decorator | None = None, cluster: Decorator | None = None) -> Callable[[Declared], Declared]:
    """An option or argument that the two targets have in different forms, or that one of them has not (None): then the
    function must have a default for it.
    """

    def add(function: Declared) -> Declared:
        parameters = getattr(function, _PARAMETERS, None)
        if parameters is None:
            parameters = []
            setattr(function, _PARAMETERS, parameters)
        parameters.append({Side.STORE: store, Side.CLUSTER: cluster})
        return function

    return add


def text_for(side: Side, text: str) -> str:
    """A text without what it says of the other side: each `[store: ...]` and `[cluster: ...]` is there or not."""
    if _OF_ONE_SIDE.search(text) is None:
        return text
    paragraphs = (
        _OF_ONE_SIDE.sub(lambda found: found[2] if found[1] == side else "", one)
        for one in re.split(r"\n\s*\n", text)
    )
    return "\n\n".join(one if "\b" in one else " ".join(one.split()) for one in paragraphs if one.strip())


def examples_over_cluster(epilog: str) -> str:
    """The examples for a store with a cluster in its place."""
    return _STORE_OF_EXAMPLE.sub("", epilog).replace("\n  rmq ", "\n  rmq -n ns1:9876 ")


def _for_side(
    side: Side, declared: Iterable[Any], function: Callable[..., None], short_help: str, epilog: str
) -> dict[str, Any]:
    """The parameters and the texts of a command for one side."""
    params: list[click.Parameter] = []
    for one in declared:
        if isinstance(one, click.Parameter):
            params.append(one)
        elif (decorator := one[side]) is not None:
            params += getattr(decorator(_with_parameters(lambda: None, [])), _PARAMETERS)
    return {
        "params": params,
        "help": text_for(side, function.__doc__ or ""),
        "short_help": text_for(side, short_help),
        "epilog": epilog,
    }


def _with_parameters(function: Callable[..., None], parameters: list[click.Parameter]) -> Callable[..., None]:
    """A function that click takes for one with these parameters."""

    def command(**given: Any) -> None:
        function(**given)

    setattr(command, _PARAMETERS, parameters)
    return command
