"""`rmq repair`: each kind of damage, what is done about it, and that nothing is deleted.

apache/rocketmq #3401, #9328, #10258: tables that are garbage after a power cut; #7355: queues unlike the log.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from rmq_store.cli import commands
from rmq_store.files import durable

if TYPE_CHECKING:
    from .conftest import Lab


def repair(lab: Lab, *arguments: str) -> tuple[int, Any]:
    """Exit code, and what it says as JSON (None if it said nothing)."""
    result = CliRunner().invoke(commands, ["repair", str(lab.root), "--json", *arguments], prog_name="rmq")
    return result.exit_code, json.loads(result.stdout) if result.stdout else None


def filled(lab: Lab) -> dict[str, bytes]:
    with lab.open() as store:
        store.append(lab.batch(100, body_bytes=200))
        store.commit_offsets("g", {("Alpha", 0): 3})
    return lab.files()


def _newest_entry(lab: Lab) -> None:
    path = sorted((lab.root / "consumequeue" / "Alpha" / "0").iterdir())[-1]
    data = bytearray(path.read_bytes())
    last = max(at for at in range(0, 100, 20) if any(data[at + 8 : at + 12]))
    data[last + 3] ^= 1
    path.write_bytes(data)


def _cut_queue_file(lab: Lab) -> None:
    os.truncate(sorted((lab.root / "consumequeue" / "Alpha" / "1").iterdir())[0], 50)


def _strange_names(lab: Lab) -> None:
    (lab.root / "consumequeue" / "Alpha" / "7").write_text("x")
    (lab.root / "consumequeue" / "Beta" / "0" / "notes").write_text("x")
    (lab.root / "consumequeue" / "stray").write_text("x")


def _index_slots(lab: Lab) -> None:
    path = sorted((lab.root / "index").iterdir())[-1]
    data = bytearray(path.read_bytes())
    data[40:104] = b"\x11" * 64
    path.write_bytes(data)


def _index_cut(lab: Lab) -> None:
    os.truncate(sorted((lab.root / "index").iterdir())[0], 333)


def _log_name(lab: Lab) -> None:
    (lab.root / "commitlog" / "notes.txt").write_text("x")


def _own(name: str) -> Callable[[Lab], None]:
    def damage(lab: Lab) -> None:
        (lab.root / name).write_bytes(b"\xff" * 600)

    damage.__name__ = name
    return damage


DAMAGES: list[Callable[[Lab], None]] = [
    _newest_entry, _cut_queue_file, _strange_names, _index_slots, _index_cut, _log_name, _own("pyrmq/progress"),
    _own("pyrmq/units.json"), _own("pyrmq/kept.json"), _own("pyrmq/queue_ends.json"), _own("config/topics.json"),
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_what_can_be_made_again_is_made_again_byte_for_byte_and_the_old_is_kept(
    lab: Lab, damage: Callable[[Lab], None]
) -> None:
    before = filled(lab)
    damage(lab)
    damaged = lab.save()
    code, plan = repair(lab, "--dry-run")
    assert (code, plan["needed"], plan["done"]) == (1, True, False)
    assert lab.save() == damaged
    code, done = repair(lab, "--yes")
    assert (code, done["done"], done["after"]["status"]) == (0, True, "clean")
    assert lab.files() == before
    removed = {path.read_bytes() for path in Path(done["removed"]).rglob("*") if path.is_file()}
    gone = {data for path, data in damaged.items() if not path.exists() or path.read_bytes() != data}
    written = {data for path, data in damaged.items() if path.name in ("progress", "state", "lock", "checkpoint")}
    assert gone - written - {b""} <= removed
    with lab.open() as store:
        assert lab.numbers(store) == list(range(100))
        assert store.committed_offsets("g") == {("Alpha", 0): 3}
        store.append(lab.batch(4))
    assert repair(lab)[0] == 0
    assert lab.verify().status == "clean"


def test_tables_that_are_garbage_with_their_backups_start_anew_and_topics_are_found(lab: Lab) -> None:
    filled(lab)
    for name in ("topics.json", "consumerOffset.json"):
        for path in (lab.root / "config" / name, lab.root / "config" / f"{name}.bak"):
            path.write_bytes(b"\0" * 100)
    code, done = repair(lab, "--yes")
    assert (code, done["after"]["status"]) == (0, "clean")
    with lab.open() as store:
        assert {"Alpha", "Beta"} <= store.topics().keys()
        assert lab.numbers(store) == list(range(100))
        assert store.committed_offsets("g") == {}
    assert len(list(Path(done["removed"]).rglob("*.json*"))) == 4


def test_damaged_records_are_kept_and_a_short_segment_is_filled_up(lab: Lab) -> None:
    filled(lab)
    lab.overwrite(9000, b"\xff" * 10)
    segments = sorted((lab.root / "commitlog").iterdir())
    os.truncate(segments[2], 5000)
    for name in ("consumequeue", "index"):
        shutil.rmtree(lab.root / name)
    code, done = repair(lab, "--yes", "--removed", str(lab.root.parent / "elsewhere"))
    assert (code, done["after"]["status"]) == (1, "kept")
    assert segments[2].stat().st_size == 8192
    assert (lab.root.parent / "elsewhere" / "commitlog" / segments[2].name).stat().st_size == 5000
    kept = [(bad["start"], bad["end"]) for bad in done["after"]["kept"]]
    assert len(kept) == 2
    assert kept[0][0] <= 9000 < kept[0][1] < 16384 + 5000 - 400 < kept[1][0] < kept[1][1] == 24576
    code, again = repair(lab, "--yes")
    assert (code, again["needed"], again["after"]) == (1, False, None)


def test_an_unclean_store_is_recovered(lab: Lab) -> None:
    filled(lab)
    lab.crash(lambda store: store.append(lab.batch(10)))
    code, done = repair(lab, "--yes")
    assert (code, done["before"]["status"], done["after"]["status"]) == (0, "unclean", "clean")
    assert done["after"]["messages"] == 110


@pytest.mark.parametrize("views", [("--queues",), ("--index",), ("--queues", "--index")], ids="+".join)
def test_views_are_built_again_on_request(lab: Lab, views: tuple[str, ...]) -> None:
    before = filled(lab)
    code, done = repair(lab, "--yes", *views)
    # Recovery writes the index again beside the queues of a store of ours.
    assert (code, done["rebuild"]) == (0, sorted({"index", *(name[2:] for name in views)}))
    assert lab.files() == before
    assert [step.partition(":")[0] for step in done["steps"]] == [
        {"queues": "consumequeue"}.get(name, name) for name in sorted(done["rebuild"], reverse=True)
    ]


def test_nothing_is_done_without_yes_nor_while_somebody_has_the_store_open(lab: Lab) -> None:
    filled(lab)
    _newest_entry(lab)
    before = lab.save()
    result = CliRunner().invoke(commands, ["repair", str(lab.root)], prog_name="rmq")
    assert (result.exit_code, "add --yes" in result.stderr) == (2, True)
    assert lab.save() == before
    same = CliRunner().invoke(commands, ["repair", "--store", str(lab.root)], prog_name="rmq")
    assert (same.exit_code, same.stderr) == (2, result.stderr)
    missing = CliRunner().invoke(commands, ["repair"], env={"RMQ_STORE": None}, prog_name="rmq")
    assert (missing.exit_code, "Missing argument 'PATH' (env var: 'RMQ_STORE')" in missing.stderr) == (2, True)
    with lab.open():
        result = CliRunner().invoke(commands, ["repair", str(lab.root), "--yes"], prog_name="rmq")
        assert (result.exit_code, "another thread of this process has the store open" in result.stderr) == (2, True)


@pytest.mark.slow
def test_a_repair_killed_at_its_kth_operation_is_started_again(lab: Lab, fail_at: Callable[..., object]) -> None:
    before = filled(lab)
    _newest_entry(lab)
    saved = lab.save()

    def die(k: int) -> None:
        fail_at(k, lambda: os._exit(9))
        repair(lab, "--yes")

    for k in range(1, 800, 7):
        lab.restore(saved)
        code = lab.in_child(lambda k=k: die(k))  # type: ignore[misc]
        assert repair(lab, "--yes")[0] == 0
        assert lab.files() == before
        if code == 0:
            break
    assert 50 < k < 799


def test_a_repair_killed_while_it_fills_up_a_segment_loses_no_record_of_it(lab: Lab) -> None:
    filled(lab)
    segments = sorted((lab.root / "commitlog").iterdir())
    os.truncate(segments[2], 5000)

    def die() -> None:
        def hook(operation: str, path: str) -> None:
            if (operation, path) == ("rename", str(segments[2])):
                os._exit(9)

        durable.hook = hook
        repair(lab, "--yes")

    assert lab.in_child(die) == 9
    assert segments[2].exists()
    done = repair(lab, "--yes")[1]
    kept = [(bad["start"], bad["end"]) for bad in done["after"]["kept"]]
    assert len(kept) == 1
    assert 16384 + 5000 - 400 < kept[0][0] < kept[0][1] == 24576


def test_what_cannot_be_copied_to_another_disk_is_not_deleted_either(lab: Lab, tmp_path: Path) -> None:
    filled(lab)
    assert tmp_path.stat().st_dev != lab.root.stat().st_dev
    link = lab.root / "index" / "notes"
    link.symlink_to("/nowhere")
    before = lab.save()
    arguments = ["repair", str(lab.root), "--yes", "--index", "--removed", str(tmp_path / "out")]
    result = CliRunner().invoke(commands, arguments, prog_name="rmq")
    assert (result.exit_code, "on the file system of the store" in result.stderr) == (2, True)
    assert link.is_symlink()
    assert lab.save() == before
    link.unlink()
    assert CliRunner().invoke(commands, arguments, prog_name="rmq").exit_code == 0
    assert len(list((tmp_path / "out" / "index").iterdir())) > 0
