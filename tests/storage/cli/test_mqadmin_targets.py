"""Each name of mqadmin is one command over two targets: the same options, the same questions, and a store loads nothing
of the network.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from rmq_store.cli import commands
from rmq_store.cli.mqadmin_targets.cluster_brokers import ClusterBrokers
from rmq_store.cli.mqadmin_targets.cluster_groups import ClusterGroups
from rmq_store.cli.mqadmin_targets.cluster_messages import ClusterMessages
from rmq_store.cli.mqadmin_targets.cluster_offsets import ClusterClone, ClusterOffsets, ClusterReset
from rmq_store.cli.mqadmin_targets.cluster_topics import ClusterTopics
from rmq_store.cli.mqadmin_targets.store_brokers import StoreBrokers
from rmq_store.cli.mqadmin_targets.store_groups import StoreGroups
from rmq_store.cli.mqadmin_targets.store_messages import StoreMessages
from rmq_store.cli.mqadmin_targets.store_offsets import StoreOffsets, StorePlan
from rmq_store.cli.mqadmin_targets.store_topics import StoreTopics
from rmq_store.cli.target.cluster_target import ClusterOption
from rmq_store.cli.target.command import TargetCommand

# They need neither a store nor a cluster, or files.
ONE_TARGET = {"DecodeMessageId", "dumpCompactionLog"}
# What chooses among brokers, and figures that a store does not have.
OF_CLUSTER = {"broker_address", "cluster_name", "with_slaves", "more"}
NAMES = next(rows for title, rows in commands.sections.items() if "mqadmin" in title)
COMMANDS = [command for row in NAMES for command in row.commands if command.name not in ONE_TARGET]


def shown(command: click.Command) -> list[str]:
    """The options that the help shows, without those of the way to a target."""
    return [
        str(one.name)
        for one in command.params
        if isinstance(one, click.Option) and not one.hidden and not isinstance(one, ClusterOption)
    ]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command.name))
def test_both_targets_have_the_same_options(command: click.Command) -> None:
    assert isinstance(command, TargetCommand)
    of_store = [name for name in shown(command) if name not in ("as_json", "root") and "store" not in name]
    of_cluster = shown(command.over_cluster())
    assert [name for name in of_cluster if name not in OF_CLUSTER] == [*of_store, "as_json"]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command.name))
def test_the_help_of_a_target_speaks_of_this_target(command: click.Command) -> None:
    assert isinstance(command, TargetCommand)
    for one in (command, command.over_cluster()):
        assert "[store:" not in f"{one.help} {one.short_help}"
        assert "[cluster:" not in f"{one.help} {one.short_help}"


@pytest.mark.parametrize(
    ("store", "clusters", "more"),
    [
        (StoreTopics, [ClusterTopics], set()),
        (StoreGroups, [ClusterGroups], set()),
        (StoreMessages, [ClusterMessages], set()),
        (StoreOffsets, [ClusterOffsets], set()),
        # What a broker deletes by itself has nothing in common with what a store does.
        (StoreBrokers, [ClusterBrokers], {"expired_queue_files", "expired_log_files"}),
        (StorePlan, [ClusterReset, ClusterClone], set()),
    ],
)
def test_both_targets_answer_the_same_questions(store: type, clusters: list[type], more: set[str]) -> None:
    def methods(kind: type) -> set[str]:
        return {name for name, value in vars(kind).items() if callable(value) and not name.startswith("_")}

    for cluster in clusters:
        assert methods(cluster) == methods(store) | more


def test_a_command_on_a_store_loads_nothing_of_the_network(golden: Path) -> None:
    lines = [
        ["topicStatus", "-t", "OrderTopic"], ["consumerProgress"], ["queryMsgByKey", "-t", "OrderTopic", "-k", "x"],
        ["printMsgByQueue", "-t", "FifoTopic", "-i", "0", "-f", "true"], ["clusterList"], ["brokerStatus"],
        ["resetOffsetByTime", "-g", "cg_orders", "-t", "OrderTopic", "-s", "now", "--dry-run"],
        ["deleteTopic", "-t", "OrderTopic", "--dry-run"], ["exportMetadata", "--json"],
    ]  # fmt: skip
    code = f"""
import sys
sys.path[:0] = {sys.path!r}
from click.testing import CliRunner
from rmq_store.cli import commands
for line in {lines!r}:
    result = CliRunner().invoke(commands, line, env={{"RMQ_STORE": {str(golden / "store")!r}}})
    assert result.exit_code == 0 or line[0] == "queryMsgByKey", result.output
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], check=True, capture_output=True, text=True, timeout=120)
    loaded = [name for name in done.stdout.split() if name.startswith("rmq_store.remoting.")]
    # The names of the options of a cluster are known before a target is.
    assert [name for name in loaded if not name.startswith("rmq_store.remoting.transport")] == []
