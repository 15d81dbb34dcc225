"""mqadmin's commands that move offsets, as it does them while nobody is online (ResetOffsetByTimeCommand).

What is asked, refused and dry is tested with `rmq offsets reset`; here that the same holds.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store import Store
from rmq_store.broker.metadata.leases import Lease

from .changing import NOW_MS, command

EXPECTED = Path(__file__).parent / "expected"


@pytest.fixture
def root(scratch: Path, made_store: Path) -> Path:
    return shutil.copytree(made_store, scratch / "store")


def committed(root: Path, group: str = "g") -> dict[tuple[str, int], int]:
    with Store.open(root, read_only=True) as store:
        return store.committed_offsets(group)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("resetOffsetByTime", ["resetOffsetByTime", "-g", "g", "-t", "T", "-s", str(NOW_MS + 1000)]),
        ("skipAccumulatedMessage", ["skipAccumulatedMessage", "-g", "g", "-t", "T"]),
        ("cloneGroupOffset", ["cloneGroupOffset", "-s", "g", "-d", "copy", "-t", "T"]),
    ],
)
def test_the_text_of_a_command_is_as_kept(root: Path, name: str, arguments: list[str]) -> None:
    result = command(root, *arguments, "--yes")
    assert result.exit_code == 0, result.output
    assert result.stdout == (EXPECTED / f"mqadmin-{name}.txt").read_text()


@pytest.mark.parametrize(
    ("options", "then"),
    [
        (["-s", str(NOW_MS + 1000)], {0: 1, 1: 0}),
        (["-s", "2025-11-21#07:55:17:000"], {0: 2, 1: 0}),
        (["-s", "now"], {0: 4, 1: 0}),
        (["-s", "-1"], {0: 4, 1: 0}),
        (["-s", "0"], {0: 0, 1: 0}),
        (["-s", str(NOW_MS), "-q", "0"], {0: 0}),
        (["-s", "now", "-q", "0", "-o", "3"], {0: 3}),
        (["-s", "now", "-f", "false"], {0: 2, 1: 0}),
        (["-s", str(NOW_MS), "-f", "false"], {0: 0, 1: 0}),
        (["-c", "DefaultCluster", "-b", "127.0.0.1:10911", "-s", "0"], {0: 0, 1: 0}),
    ],
)
def test_a_reset_is_to_a_time_or_an_offset_and_without_force_only_backwards(
    root: Path, options: list[str], then: dict[int, int]
) -> None:
    """DefaultMQAdminExtImpl#resetOffsetConsumeOffset: `force || resetOffset <= consumerOffset`."""
    result = command(root, "resetOffsetByTime", "-g", "g", "-t", "T", *options, "--yes")
    assert result.exit_code == 0, result.output
    assert committed(root) == {("T", queue_id): offset for queue_id, offset in then.items()}


def test_accumulated_messages_are_skipped(root: Path) -> None:
    assert command(root, "skipAccumulatedMessage", "-g", "g", "-t", "T", "--yes").exit_code == 0
    assert committed(root) == {("T", 0): 4, ("T", 1): 0}


def test_a_clone_begins_where_the_other_group_is(root: Path) -> None:
    """CloneGroupOffsetCommand.java."""
    shown = command(root, "cloneGroupOffset", "-s", "g", "-d", "copy", "-t", "T", "--dry-run")
    assert (shown.stdout, shown.stderr) == ("", "T queue 0: no offset -> 2\n")
    assert committed(root, "copy") == {}
    command(root, "cloneGroupOffset", "-s", "g", "-d", "copy", "-t", "T", "--yes")
    assert committed(root, "copy") == {("T", 0): 2}
    assert "no group 'gg'" in command(root, "cloneGroupOffset", "-s", "gg", "-d", "x", "-t", "T", "--yes").stderr
    with Store.open(root) as store:
        store.create_topic("U", queue_count=1)
    assert "nothing to clone" in command(root, "cloneGroupOffset", "-s", "g", "-d", "x", "-t", "U", "--yes").stderr


COMMANDS = [
    ["resetOffsetByTime", "-g", "g", "-t", "T", "-s", "0"],
    ["skipAccumulatedMessage", "-g", "g", "-t", "T"],
    ["cloneGroupOffset", "-s", "other", "-d", "g", "-t", "T"],
]


@pytest.fixture
def other(root: Path) -> None:
    with Store.open(root) as store:
        store.commit_offsets("other", {("T", 0): 1})


@pytest.mark.usefixtures("other")
@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: arguments[0])
def test_each_asks_or_is_dry_and_refuses_while_a_consumer_would_overwrite_it(
    root: Path, tree_hash: Callable[[Path], str], arguments: list[str]
) -> None:
    before = tree_hash(root)
    assert command(root, *arguments, "--dry-run").exit_code == 0
    assert json.loads(command(root, *arguments, "--dry-run", "--json").stdout)["reset"] is False
    assert command(root, *arguments).exit_code == 2
    assert "[y/N]: n" in command(root, *arguments, answer="n").stderr
    assert tree_hash(root) == before
    lease = Lease(root, "g", "T")
    lease.acquire("query 'orders'")
    refused = command(root, *arguments, "--yes")
    assert refused.exit_code == 1
    assert "query 'orders'" in refused.stderr
    assert "[y/N]" not in command(root, *arguments, answer="y").stderr
    lease.release()
    assert committed(root) == {("T", 0): 2}
    assert command(root, *arguments, answer="y").exit_code == 0
    assert committed(root) != {("T", 0): 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-g", "g", "-t", "T", "-s", "tomorrow"], "'tomorrow' is no time"),
        (["-g", "g", "-t", "T", "-s", "now", "-o", "3"], "-o needs -q"),
        (["-g", "G", "-t", "T", "-s", "now"], "did you mean 'g'?"),
        (["-g", "g", "-t", "t", "-s", "now"], "did you mean 'T'?"),
        (["-g", "g", "-t", "T", "-s", "now", "-q", "9"], "topic 'T' has queues 0 to 1, not 9"),
    ],
)
def test_a_mistake_is_one_line(root: Path, options: list[str], message: str) -> None:
    result = command(root, "resetOffsetByTime", *options, "--yes")
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
