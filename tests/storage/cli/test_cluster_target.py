"""Which store or cluster a command line names, and what happens to a command that a cluster does not have.

A user who has both must never get one when the other was meant: two targets are an error, what was typed is stronger
than the environment, and RocketMQ's own variable never hides a store.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from helpers.cluster.simulated import SimulatedCluster
from rmq_store.cli import commands
from rmq_store.cli.target.table import COMMANDS, Support

Ask = Callable[..., Result]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=2) as cluster:
        cluster.create_topic("Orders", queue_count=2, message_count=100, first=10)
        yield cluster


@pytest.fixture
def ask() -> Ask:
    def invoke(*arguments: str, **environment: str) -> Result:
        clean = {"RMQ_STORE": None, "NAMESRV_ADDR": None, **environment}
        return CliRunner().invoke(commands, list(arguments), env=clean, prog_name="rmq", catch_exceptions=False)

    return invoke


def _topics(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [topic["topic"] for topic in json.loads(result.stdout)]


def test_all_spellings_of_a_cluster_are_one(ask: Ask, cluster: SimulatedCluster) -> None:
    address = cluster.name_server
    by_hand = [
        ask("-n", address, "topics", "--json"),
        ask("--namesrvAddr", address, "topics", "--json"),
        ask("topics", "-n", address, "--json"),
        ask("topics", f"-n{address}", "--json"),
        ask("topics", "--json", f"--name-server={address}"),
        ask("topics", "--namesrvAddr", f"rmq://{address};{address}", "--json"),
        ask("topics", "--store", f"rmq://{address}", "--json"),
        ask("topics", f"--store=rmq://{address}", "--json"),
        ask("topics", "--json", RMQ_STORE=f"rmq://{address}"),
        ask("topics", "--json", NAMESRV_ADDR=address),
        # Endpoints of cloud providers look so, and Java's clients take them.
        ask("-n", f"http://{address}", "topics", "--json"),
        ask("topics", "--store", f"rmq://http://{address}/", "--json"),
        ask("topics", "--json", RMQ_STORE=f"rmq://https://{address}"),
        ask("topics", "--json", NAMESRV_ADDR=f"http://{address};http://{address}"),
    ]
    assert [_topics(result) for result in by_hand] == [["Orders"]] * len(by_hand)


def test_a_typed_target_is_stronger_than_the_environment(ask: Ask, cluster: SimulatedCluster, golden: Path) -> None:
    store, address = str(golden / "store"), cluster.name_server
    assert _topics(ask("topics", "-n", address, "--json", RMQ_STORE=store)) == ["Orders"]
    for variables in ({"RMQ_STORE": f"rmq://{address}"}, {"NAMESRV_ADDR": address}):
        assert "FifoTopic" in _topics(ask("topics", "--store", store, "--json", **variables))
    # RocketMQ's variable does not hide the store of ours.
    assert "FifoTopic" in _topics(ask("topics", "--json", RMQ_STORE=store, NAMESRV_ADDR=address))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["-n", "a:1", "topics", "--store", "/tmp"], "rmq: name a store (--store) or a cluster (-n), not both\n"),
        (["topics", "--namesrvAddr", "a:1", "--store=/tmp"], "name a store (--store) or a cluster (-n), not both\n"),
        (["-n", "a:1", "repair", "/tmp"], "name a store (--store) or a cluster (-n), not both\n"),
        (["-n", "a:1", "topics", "-n", "b:1"], "rmq: a cluster is named twice"),
        (["-n", "a:1", "topics", "--store", "rmq://a:1"], "rmq: a cluster is named twice"),
        (["-n", "a", "topics"], "rmq: 'a' is no address"),
        (["-n", "a:1", "topics", "--tls-ca-file", "x"], "Error: options of TLS need --tls\n"),
        (["-n", "a:1", "topics", "--access-key", "env:K"], "an access key and a secret key belong together"),
    ],
)
def test_what_names_no_single_target_is_a_mistake(ask: Ask, arguments: list[str], error: str) -> None:
    result = ask(*arguments)
    assert result.exit_code == 2
    assert error in result.stderr


def test_a_secret_that_is_no_reference_is_refused_and_not_shown(ask: Ask) -> None:
    result = ask("-n", "a:1", "topics", "--access-key", "env:K", "--secret-key", "TheSecretItself")
    assert result.exit_code == 2
    assert "TheSecretItself" not in result.output
    assert ask("-n", "a:1", "topics", RMQ_SECRET_KEY="TheSecretItself").exit_code == 2


@pytest.mark.parametrize("path", [path for path, row in COMMANDS.items() if row.support == Support.REFUSED])
def test_a_refused_command_ends_with_the_sentence_of_its_row(ask: Ask, path: str) -> None:
    sentence = COMMANDS[path].sentence
    result = ask("-n", "a:1", *path.split(), "--some")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"rmq: rmq {path} over a cluster is refused: {sentence}\n"
    assert " ".join(ask("-n", "a:1", *path.split(), "--help").stdout.split()).count(sentence) == 1


def test_rocketmqs_variable_does_not_refuse_a_command_for_stores(ask: Ask, golden: Path) -> None:
    assert "Missing argument 'PATH'" in ask("verify", NAMESRV_ADDR="a:1").stderr
    assert "is refused" in ask("verify", RMQ_STORE="rmq://a:1").stderr
    assert ask("verify", "--store", str(golden / "store"), NAMESRV_ADDR="a:1").exit_code == 0


def test_values_of_options_are_no_target(ask: Ask, tmp_path: Path) -> None:
    """`--body -n` and `-n 3` are values; only an address behind -n is a cluster."""
    store = str(tmp_path / "store")
    assert ask("init", store).exit_code == 0
    assert ask("send", "T", "--body", "-n", "--store", store).exit_code == 0
    assert ask("send", "T", "--store", store, "--tags", "a:1", "--body", "--name-server").exit_code == 0
    lines = ask("tail", "T", "-n", "1", "--store", store).stdout.splitlines()
    assert [line.split()[-1] for line in lines] == ["--name-server"]


def test_the_help_is_that_of_the_target(ask: Ask) -> None:
    for text in (
        ask("-n", "a:1", "topics", "--help").stdout,
        ask("help", "topics", RMQ_STORE="rmq://a:1").stdout,
        ask("-n", "a:1", "TOPICS", "-h").stdout,
    ):
        assert "The cluster:\n" in text
        assert "--store" not in text
        assert "[env var: RMQ_ACCESS_KEY]" in " ".join(text.split())
    assert "The cluster:" not in ask("topics", "--help").stdout
    assert "Refused over a cluster" in ask("-n", "a:1", "dlq").stderr + ask("-n", "a:1", "retention").stderr


def test_commands_over_a_cluster_are_loaded_only_for_a_cluster() -> None:
    code = (
        "import sys\nfrom rmq_store.cli import commands\n"
        "commands(['topics', '--help'], standalone_mode=False)\n"
        "names = ('numpy', 'pyarrow', 'rmq_store.cli.target.cluster.view', 'rmq_store.remoting.cluster.cluster')\n"
        "print([name for name in names if name in sys.modules])\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert shown.stdout.splitlines()[-1] == "[]"
