"""Shared by the commands of mqadmin: their declaration for both targets, and the opened target."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rmq_store.cli.target.cluster_target import ClusterOption, ClusterTarget
from rmq_store.cli.target.command import TargetCommand, by_target, target_command
from rmq_store.cli.target.store_target import StoreTarget
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store import Store
    from rmq_store.cli.mqadmin_targets.cluster_brokers import ClusterBrokers
    from rmq_store.cli.mqadmin_targets.cluster_groups import ClusterGroups
    from rmq_store.cli.mqadmin_targets.cluster_messages import ClusterMessages
    from rmq_store.cli.mqadmin_targets.cluster_offsets import ClusterOffsets
    from rmq_store.cli.mqadmin_targets.cluster_scope import Scope
    from rmq_store.cli.mqadmin_targets.cluster_topics import ClusterTopics
    from rmq_store.cli.mqadmin_targets.store_brokers import StoreBrokers
    from rmq_store.cli.mqadmin_targets.store_groups import StoreGroups
    from rmq_store.cli.mqadmin_targets.store_messages import StoreMessages
    from rmq_store.cli.mqadmin_targets.store_offsets import StoreOffsets
    from rmq_store.cli.mqadmin_targets.store_topics import StoreTopics

Command = TypeVar("Command", bound=Callable[..., Any])
Asked = TypeVar("Asked")
Target = StoreTarget | ClusterTarget
Chosen = Mapping[str, Any]
"""The options of `choosing`, and others that are fields of `Scope`."""
ALL: Chosen = MappingProxyType({})

_UNNEEDED = {"n": ("-n", "--namesrvAddr"), "b": ("-b", "--brokerAddr"), "c": ("-c", "--clusterName")}
_CHOICES = {
    "b": click.option(
        "-b", "--brokerAddr", "broker_address", metavar="HOST:PORT",
        help="Only this process: an address that a broker has registered.",
    ),
    "c": click.option("-c", "--clusterName", "cluster_name", metavar="NAME", help="Only the brokers of this cluster."),
}  # fmt: skip


def mqadmin_command(
    name: str, *, short_help: str, epilog: str, unneeded: str = "nbc"
) -> Callable[[Callable[..., None]], TargetCommand]:
    """Declare a command for both targets, as `target_command`. `unneeded`: which of mqadmin's -n, -b and -c a store
    ignores; they are hidden.
    """

    def declare(function: Callable[..., None]) -> TargetCommand:
        for letter in unneeded:
            hidden = click.option(*_UNNEEDED[letter], hidden=True, expose_value=False)
            function = by_target(store=hidden)(function)
        made = target_command(name, short_help=short_help, epilog=epilog)(function)
        over_cluster = made.over_cluster
        made.over_cluster = lambda: _json_last(over_cluster())
        return made

    return declare


def _json_last(command: click.Command) -> click.Command:
    """The command over a cluster, its own options before --json, and then those of the cluster."""
    command.params.sort(key=lambda one: (isinstance(one, ClusterOption), one.name == "as_json"))
    return command


def choosing(letters: str) -> Callable[[Command], Command]:
    """Add, over a cluster, those of -b and -c that are in `letters`: the command gets `broker_address: str | None` and
    `cluster_name: str | None`, for the scope of a cluster.
    """

    def add(function: Command) -> Command:
        for letter in reversed(letters):
            function = by_target(cluster=_CHOICES[letter])(function)
        return function

    return add


def refused_options(*names: tuple[str, ...], reason: str) -> Callable[[Command], Command]:
    """Add options of mqadmin that cannot be carried out here: each raises UsageError with the reason."""

    def refuse(ctx: click.Context, option: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise UsageError(f"{option.opts[0]} ({option.opts[-1].lstrip('-')}): {reason}")

    def add(command: Command) -> Command:
        for declarations in names:
            command = click.option(*declarations, hidden=True, expose_value=False, callback=refuse)(command)
        return command

    return add


# -- the opened target. Over a cluster `chosen` is the scope, and stderr names the brokers that have failed at the end.


def topics_of(
    target: Target, chosen: Chosen = ALL, *, to_write: bool = False
) -> AbstractContextManager[StoreTopics | ClusterTopics]:
    """The topics of a target. `to_write`: a store is opened for writing."""
    if isinstance(target, StoreTarget):
        from rmq_store.cli.mqadmin_targets.store_topics import StoreTopics

        return _of_store(target, StoreTopics, to_write=to_write)
    from rmq_store.cli.mqadmin_targets.cluster_topics import ClusterTopics

    return _of_cluster(target, ClusterTopics, chosen)


def groups_of(
    target: Target, chosen: Chosen = ALL, *, to_write: bool = False
) -> AbstractContextManager[StoreGroups | ClusterGroups]:
    """The groups of a target. `to_write`: a store is opened for writing."""
    if isinstance(target, StoreTarget):
        from rmq_store.cli.mqadmin_targets.store_groups import StoreGroups

        return _of_store(target, StoreGroups, to_write=to_write)
    from rmq_store.cli.mqadmin_targets.cluster_groups import ClusterGroups

    return _of_cluster(target, ClusterGroups, chosen)


def offsets_of(target: Target, chosen: Chosen = ALL) -> AbstractContextManager[StoreOffsets | ClusterOffsets]:
    """The offsets of a target's groups."""
    if isinstance(target, StoreTarget):
        from rmq_store.cli.mqadmin_targets.store_offsets import StoreOffsets

        return _of_store(target, StoreOffsets)
    from rmq_store.cli.mqadmin_targets.cluster_offsets import ClusterOffsets

    return _of_cluster(target, ClusterOffsets, chosen)


def brokers_of(
    target: Target, chosen: Chosen = ALL, *, to_write: bool = False
) -> AbstractContextManager[StoreBrokers | ClusterBrokers]:
    """The brokers of a target. `to_write`: a store is opened for writing."""
    if isinstance(target, StoreTarget):
        from rmq_store.cli.mqadmin_targets.store_brokers import StoreBrokers

        return _of_store(target, StoreBrokers, to_write=to_write)
    return cluster_brokers(target, chosen)


def cluster_brokers(target: ClusterTarget, chosen: Chosen) -> AbstractContextManager[ClusterBrokers]:
    """The brokers of a cluster, for a command that has nothing in common with the one for a store."""
    from rmq_store.cli.mqadmin_targets.cluster_brokers import ClusterBrokers

    return _of_cluster(target, ClusterBrokers, chosen)


@contextlib.contextmanager
def messages_of(target: Target, *, to_write: bool = False) -> Iterator[StoreMessages | ClusterMessages]:
    """The messages of a target. `to_write`: a store is opened for writing."""
    if isinstance(target, StoreTarget):
        from rmq_store.cli.mqadmin_targets.store_messages import StoreMessages

        with _of_store(target, StoreMessages, to_write=to_write) as found:
            yield found
        return
    from rmq_store.cli.mqadmin_targets.cluster_messages import ClusterMessages
    from rmq_store.cli.target.answers import Answers

    with target.open() as cluster:
        answers = Answers(cluster)
        yield ClusterMessages(target, cluster, answers)
    answers.report()


@contextlib.contextmanager
def _of_store(target: StoreTarget, kind: Callable[[Store], Asked], *, to_write: bool = False) -> Iterator[Asked]:
    if to_write:
        from rmq_store import Store

        opened = Store.open(target.root)
    else:
        opened = target.open()
    with opened as store:
        yield kind(store)


@contextlib.contextmanager
def _of_cluster(
    target: ClusterTarget, kind: Callable[[Scope], Asked], chosen: Chosen
) -> Iterator[Asked]:
    from rmq_store.cli.mqadmin_targets.cluster_scope import Scope
    from rmq_store.cli.target.failure_report import ProcessFailureReport

    report = ProcessFailureReport()
    with target.open() as cluster:
        yield kind(Scope(cluster, report, **chosen))
    report.report()
