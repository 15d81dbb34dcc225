"""Commands of other packages: found by entry points, only when they are needed, and `rmq` works without them.

The connector adds `rmq checkpoint`. It may be broken, of another version, or not be there at all.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from rmq_store.cli import plugin, plugin_loader
from rmq_store.cli.sections import SectionedGroup

ROOT = Path(__file__).resolve().parents[3]

RUN = """
import sys
sys.path[:0] = [{root!r}]
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "pyspark_rmq":
            raise ImportError(f"blocked: {{name}}")
if {blocked}:
    sys.meta_path.insert(0, Blocker())
import rmq_store.cli
before = set(sys.modules)
try:
    rmq_store.cli.commands({arguments!r}, prog_name="rmq")
finally:
    print("looked" if "importlib.metadata" in set(sys.modules) - before else "did not look", file=sys.stderr)
"""


def rmq(*arguments: str, blocked: bool) -> subprocess.CompletedProcess[str]:
    code = RUN.format(root=str(ROOT / "storage"), blocked=blocked, arguments=list(arguments))
    return subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)


def test_a_command_of_the_connector_is_in_the_help_and_runs() -> None:
    assert re.search(r"  checkpoint +A stream's checkpoint", rmq("--help", blocked=False).stdout)
    assert rmq("checkpoint", "show", "--help", blocked=False).stdout.startswith("Usage: rmq checkpoint show ")


def test_a_broken_connector_fails_its_own_command_and_no_other() -> None:
    listed = rmq("--help", blocked=True)
    assert listed.returncode == 0
    assert "Not loaded:\n  checkpoint  Of package pyspark-rmq; cannot be loaded." in listed.stdout
    for arguments in (["checkpoint"], ["checkpoint", "--help"], ["checkpoint", "show", "x", "--json"]):
        failed = rmq(*arguments, blocked=True)
        assert failed.returncode == 1
        assert failed.stderr.startswith(
            "rmq: command 'checkpoint' of package pyspark-rmq cannot be loaded: ImportError: blocked: pyspark_rmq"
        )
        assert "Traceback" not in failed.stderr
    assert rmq("topics", "--help", blocked=True).returncode == 0


def test_nobody_looks_for_commands_of_packages_while_another_command_runs() -> None:
    assert rmq("topics", "--help", blocked=False).stderr == "did not look\n"
    assert rmq("checkpoint", "--help", blocked=False).stderr == "looked\n"


def group(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str]) -> SectionedGroup:
    """A command with `topics` of its own, and these entry points (name, value) in the environment."""

    def entry_points(**wanted: str) -> list[metadata.EntryPoint]:
        return [metadata.EntryPoint(name, value, wanted["group"]) for name, value in entries]

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    made = SectionedGroup("rmq")
    made.add_section("Look", [click.Command("topics", short_help="Of rmq.")])
    made.plugins = plugin_loader.plugins
    return made


def test_without_the_connector_its_command_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(group(monkeypatch), ["checkpoint"])
    assert done.exit_code == 2
    assert "No such command 'checkpoint'" in done.output


Plugin = plugin_loader.Plugin


class Other:
    """What another package may name."""

    added = Plugin("Look", click.Command("added", callback=lambda: click.echo("ran"), short_help="Added."))
    taken = Plugin("Look", click.Command("topics", callback=lambda: click.echo("taken"), short_help="Taken."))
    bare = click.Command("bare")


def test_a_package_adds_a_command_at_the_end_of_a_section_and_replaces_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "other_package", Other)  # type: ignore[arg-type]
    found = group(monkeypatch, ("added", "other_package:added"), ("topics", "other_package:taken"))
    text = CliRunner().invoke(found, ["--help"]).output
    assert "Look:\n  topics  Of rmq.\n  added   Added.\n" in text
    assert "Taken" not in text
    assert CliRunner().invoke(found, ["added"]).output == "ran\n"


def test_what_is_no_plugin_is_said_when_it_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "other_package", Other)  # type: ignore[arg-type]
    found = group(monkeypatch, ("bare", "other_package:bare"))
    error = CliRunner().invoke(found, ["bare"]).exception
    assert "'bare' of package other_package:bare cannot be loaded: TypeError: other_package:bare" in str(error)


@pytest.mark.parametrize("name", plugin.__all__)
def test_every_name_for_commands_is_there(name: str) -> None:
    found: Any = getattr(plugin, name)
    assert found is not None


def test_a_name_that_is_not_for_commands_is_refused() -> None:
    with pytest.raises(AttributeError, match="absent"):
        _ = plugin.absent  # type: ignore[attr-defined]
