"""What CI and developers install for the tests of `rmq_store.reliable`: all of it, or a clear word."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "test_servers.sh"
PROGRAMS = {
    "postgresql": ("initdb", "postgres"),
    "mariadb-server": ("mariadbd", "mariadb-install-db"),
    "redis-server": ("redis-server",),
    "pgbouncer": ("pgbouncer",),
}

# Installs by making empty programs; fails as often as the file `failures` has lines.
APT = """
printf '%s\\n' "$*" >> {log}
[ -s {failures} ] && sed -i 1d {failures} && exit 100
case "$*" in *install*)
    for word in "$@"; do
        for program in $(cat {packages}/"$word" 2>/dev/null); do cp {apt} {bin}/"$program"; done
    done
esac
exit 0
"""


class Machine:
    """A PATH with what the script needs, an `apt-get` that always fails or fails at first, and no pauses."""

    def __init__(self, directory: Path) -> None:
        self.bin = directory / "bin"
        self.log = directory / "log"
        self.failures = directory / "failures"
        self.failures.touch()
        packages = directory / "packages"
        for path in (self.bin, packages):
            path.mkdir()
        for package, programs in PROGRAMS.items():
            (packages / package).write_text(" ".join(programs))
        for tool in ("sh", "sed", "cp", "cat"):
            found = shutil.which(tool)
            assert found
            (self.bin / tool).symlink_to(found)
        apt = self.bin / "apt-get"
        places = {"log": self.log, "failures": self.failures, "packages": packages, "apt": apt, "bin": self.bin}
        self.program("apt-get", APT.format(**places))
        self.program("sleep", "exit 0")
        self.program("id", "echo 0")

    def program(self, name: str, text: str = "exit 0") -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def run(self, what: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.bin / "sh"), str(SCRIPT), what],
            env={"PATH": str(self.bin), "SERVER_DIRECTORIES": ""},
            capture_output=True,
            text=True,
            check=False,
        )

    def asked(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_what_is_missing_is_said_in_one_line(machine: Machine) -> None:
    machine.program("redis-server")
    machine.program("initdb")
    done = machine.run("check")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "postgresql mariadb-server" in done.stderr
    assert "redis" not in done.stderr
    assert machine.asked() == []


def test_only_what_is_missing_is_installed(machine: Machine) -> None:
    machine.program("redis-server")
    assert machine.run("install").returncode == 0
    assert machine.run("check").returncode == 0
    update, install = machine.asked()
    assert update.endswith(" update")
    assert install.endswith(" install --no-install-recommends postgresql mariadb-server pgbouncer")
    assert machine.run("install").returncode == 0
    assert len(machine.asked()) == 2, "nothing was missing any more"


def test_a_network_that_fails_for_a_moment_is_asked_again(machine: Machine) -> None:
    machine.failures.write_text("x\nx\n")
    assert machine.run("install").returncode == 0
    assert machine.run("check").returncode == 0


def test_packages_that_do_not_come_fail_the_installation(machine: Machine) -> None:
    machine.failures.write_text("x\n" * 6)
    done = machine.run("install")
    assert done.returncode == 1
    assert "apt-get could not install postgresql mariadb-server redis-server pgbouncer" in done.stderr
    assert len(machine.asked()) == 6


def test_packages_without_their_programs_fail_the_installation(machine: Machine) -> None:
    machine.program("apt-get")
    done = machine.run("install")
    assert done.returncode == 1
    assert "programs of these packages are not found: postgresql" in done.stderr


def test_who_is_not_root_is_told_what_to_type(machine: Machine) -> None:
    machine.program("id", "echo 1000")
    done = machine.run("install")
    assert done.returncode == 1
    assert "sudo sh tools/test_servers.sh install" in done.stderr
    (machine.bin / "apt-get").unlink()
    assert "there is no apt-get" in machine.run("install").stderr


def test_the_programs_of_this_machine_are_found_where_the_tests_find_them() -> None:
    """The two must agree: CI would install, and the tests still say that there is nothing."""
    from helpers import servers

    kinds = (servers.postgresql(), servers.mariadb(), servers.redis())
    missing = [server.package for server in kinds if None in server.programs()]
    done = subprocess.run(["sh", str(SCRIPT), "check"], env=os.environ, capture_output=True, text=True, check=False)
    assert [package for package in PROGRAMS if package in done.stderr.split("To install")[0]] == missing
    assert done.returncode == bool(missing)
