"""`rmq doctor`: every check has a case in which it is not well, and a fix."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from click.testing import Result

from rmq_store import BadRange, Message, NotAStoreError, Store, StoreConfig
from rmq_store.cli.checks import FAIL, OK, WARN, Finding, directory, machine, spark
from rmq_store.files.locks.state_page import StatePage
from rmq_store.log.core.accepted_damage import AcceptedDamage

Run = Callable[..., Result]
SMALL = StoreConfig(mapped_file_size_commit_log=16384, max_hash_slot_num=64, max_index_num=100)


@pytest.fixture
def root(scratch: Path) -> Path:
    with Store.open(scratch / "store", create=True, config=SMALL) as store:
        store.send(Message("Orders", b"x"))
    return scratch / "store"


def _is(finding: Finding, status: str, *words: str) -> None:
    assert finding.status == status, finding
    assert all(word in finding.text + finding.fix for word in words), finding
    assert bool(finding.fix) == (status != OK), finding


# ---- the machine


def test_a_python_that_is_too_old_or_elsewhere() -> None:
    _is(machine.python(), OK)
    _is(machine.python((3, 10, 9)), FAIL, "3.10.9", "3.11")
    _is(machine.python(platform="darwin"), FAIL, "darwin", "Linux")


def test_packages_that_are_missing_or_too_old() -> None:
    assert {finding.status for finding in machine.packages()} == {OK}
    numpy, pyarrow, *_ = machine.packages(_versions)
    _is(numpy, FAIL, "1.26.4", "numpy>=2.0")
    _is(pyarrow, FAIL, "not installed", "pyarrow>=18.0")


def _versions(name: str) -> str:
    if name == "pyarrow":
        raise PackageNotFoundError(name)
    return "1.26.4"


def test_the_packages_are_those_of_the_distribution() -> None:
    text = (Path(__file__).parents[3] / "setup.py").read_text()
    for name, (major, minor) in machine.PACKAGES.items():
        assert f'"{name}>={major}.{minor}"' in text


def test_limits_that_are_too_low(tmp_path: Path) -> None:
    maps = tmp_path / "max_map_count"
    maps.write_text("1000\n")
    files, few = machine.limits(512, maps)
    _is(files, WARN, "512", "ulimit -n 1024")
    _is(few, WARN, "1000", "vm.max_map_count=65530")
    _is(machine.limits(100, maps)[0], FAIL)
    _is(machine.limits(-1, maps)[0], OK)
    _is(machine.limits(1024, tmp_path / "absent")[1], WARN, "absent")


def test_a_time_zone_that_does_not_exist() -> None:
    _is(machine.time_zone({"TZ": "Europe/Nowhere"}), WARN, "Europe/Nowhere")
    _is(machine.time_zone({}), OK)


# ---- Java and Spark


def _program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_java_is_that_of_java_home_else_of_the_path(tmp_path: Path) -> None:
    old = _program(tmp_path / "old" / "java", "echo 'openjdk version \"1.8.0_402\"' >&2")
    new = _program(tmp_path / "new" / "bin" / "java", "echo 'openjdk version \"21.0.2\" 2024' >&2")
    path = f"{old.parent}:/usr/bin:/bin"
    _is(spark.java({"PATH": path}), FAIL, "8, ", str(old), "(PATH)")
    _is(spark.java({"PATH": path, "JAVA_HOME": str(new.parent.parent)}), OK, "21, ", "JAVA_HOME")
    _is(spark.java({"PATH": str(tmp_path)}), FAIL, "none on the PATH")
    _is(spark.java({"PATH": path, "JAVA_HOME": str(tmp_path)}), FAIL, "does not run")
    mute = _program(tmp_path / "mute" / "java", "exit 3")
    _is(spark.java({"PATH": str(mute.parent)}), FAIL, "does not tell its version")


def _python(path: Path, **facts: object) -> Path:
    """A Python that answers the probe with these facts."""
    known = {
        "executable": str(path), "version": [3, 11, 7],
        "packages": {"pyspark": "4.3.0", "numpy": "2", "pyarrow": "26", "pandas": "2.3.3"},
        "engine": True, "connector": True, "sources": {"pyspark_rmq": "rmq"}, "broken": {}, "spark_home": "",
        "lacking": {},
    }  # fmt: skip
    return _program(path, f"cat <<'END'\nnoise\n{json.dumps({**known, **facts})}\nEND")


def _by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


def _environment(tmp_path: Path, **more: str) -> dict[str, str]:
    java = _program(tmp_path / "bin" / "java", "echo 'version \"17.0.1\"' >&2")
    return {"PATH": f"{java.parent}:/usr/bin:/bin", **more}


def test_a_machine_on_which_all_is_well(tmp_path: Path) -> None:
    driver = _python(tmp_path / "bin" / "python3")
    found = _by_name(spark.checks(_environment(tmp_path), str(driver)))
    assert [*found] == ["java", "pyspark", "pandas", "worker python", "pyspark_* modules", "data source"]
    assert {finding.status for finding in found.values()} == {OK}


def test_workers_with_another_python(tmp_path: Path) -> None:
    driver = str(_python(tmp_path / "driver"))
    other = _python(tmp_path / "other", version=[3, 12, 1])
    found = _by_name(spark.checks(_environment(tmp_path, PYSPARK_PYTHON=str(other)), driver))
    _is(found["worker python"], FAIL, "3.12.1", "the driver has 3.11", f"export PYSPARK_PYTHON={driver}")
    assert "data source" not in found
    none = _by_name(spark.checks(_environment(tmp_path, PYSPARK_PYTHON=str(tmp_path / "absent")), driver))
    _is(none["worker python"], FAIL, "there is no such program", "PYSPARK_PYTHON")
    packages: dict[str, str | None] = {"pyspark": None, "numpy": "2", "pyarrow": None, "pandas": "2.3.3"}
    bare = _python(tmp_path / "bin" / "python3", packages=packages, engine=False)
    found = _by_name(spark.checks(_environment(tmp_path), driver))
    _is(found["worker python"], FAIL, str(bare), "PYSPARK_PYTHON is not set", "has no pyarrow, rmq_store: tasks crash")
    packages = {"pyspark": "4.3.0", "numpy": "2", "pyarrow": "18", "pandas": None}
    _python(tmp_path / "bin" / "python3", packages=packages)
    found = _by_name(spark.checks(_environment(tmp_path), driver))
    _is(found["worker python"], WARN, "pyarrow 26 and 18", "pandas 2.3.3 and none")


@pytest.mark.parametrize(("version", "said"), [(None, "not installed"), ("2.1.4", "2.1.4")])
def test_without_a_pandas_that_pyspark_takes_the_doctor_names_what_does_not_work(
    tmp_path: Path, version: str | None, said: str
) -> None:
    """PySpark does not install pandas, and its mapInArrow refuses to work without it: so did `consume`."""
    packages = {"pyspark": "4.3.0", "numpy": "2", "pyarrow": "26", "pandas": version}
    driver = _python(tmp_path / "bin" / "python3", packages=packages)
    found = _by_name(spark.checks(_environment(tmp_path), str(driver)))
    _is(found["pandas"], WARN, said, "consume needs 2.2 or newer", "pip install 'pandas>=2.2'")
    assert {name for name, finding in found.items() if finding.status != OK} == {"pandas"}


def test_no_pyspark_or_an_old_one(tmp_path: Path) -> None:
    none = _python(tmp_path / "none", packages={"pyspark": None, "numpy": "2", "pyarrow": "26", "pandas": None})
    (finding,) = spark.checks(_environment(tmp_path), str(none))
    _is(finding, WARN, "not installed", "pip install")
    packages = {"pyspark": "3.5.6", "numpy": "2", "pyarrow": "26", "pandas": "2.3.3"}
    old = _python(tmp_path / "bin" / "python3", packages=packages)
    _is(_by_name(spark.checks(_environment(tmp_path), str(old)))["pyspark"], FAIL, "3.5.6", "4.0 or newer is needed")
    lacking = {"filter pushdown": "the option filterPushdown is refused"}
    older = _python(tmp_path / "older" / "python3", packages={**packages, "pyspark": "4.0.5"}, lacking=lacking)
    found = _by_name(spark.checks(_environment(tmp_path), str(older)))["pyspark"]
    _is(found, OK, "4.0.5; it has no filter pushdown: the option filterPushdown is refused")
    broken = _program(tmp_path / "broken", "echo 'ImportError: libpython' >&2; exit 1")
    (finding,) = spark.checks(_environment(tmp_path), str(broken))
    _is(finding, FAIL, "libpython")


def test_a_data_source_that_spark_does_not_find(tmp_path: Path) -> None:
    lost = _python(tmp_path / "bin" / "python3", sources={})
    found = _by_name(spark.checks(_environment(tmp_path), str(lost)))
    _is(found["data source"], FAIL, "is not found", "register(spark)")
    _python(tmp_path / "bin" / "python3", sources={}, connector=False)
    found = _by_name(spark.checks(_environment(tmp_path), str(lost)))
    _is(found["data source"], FAIL, "has no pyspark_rmq", "pip install pyspark-rmq")


def _probed(*directories: Path) -> list[Finding]:
    """What is found with this Python, these directories on its path, and ours."""
    roots = [str(path) for path in directories] + [path for path in sys.path if path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(roots), "PYSPARK_PYTHON": sys.executable}
    return spark.checks(environment)


def test_a_broken_sibling_is_named_as_it_makes_all_data_sources_vanish(tmp_path: Path) -> None:
    """One `pyspark_*` module that cannot be imported, and Spark knows no Python source."""
    (tmp_path / "pyspark_broken.py").write_text("print('noise')\nimport no_such_module_anywhere\n")
    (tmp_path / "pyspark_exits.py").write_text("import sys\nsys.exit(3)\n")
    found = _by_name(_probed(tmp_path))
    _is(found["pyspark_* modules"], FAIL, "pyspark_broken cannot be imported: ModuleNotFoundError", "pyspark_exits",
        "no Python data source at all", "uninstall")  # fmt: skip
    _is(found["worker python"], OK)
    _is(found["data source"], OK, 'format("rmq")')  # ours is found in this checkout


# ---- a store


def test_a_store_that_is_well(root: Path) -> None:
    assert [finding for finding in directory.checks(root) if finding.status == FAIL] == []
    assert [*_by_name(directory.checks(root))] == [
        "store", "kind", "contents", "tables", "permissions", "links", "file system", "disk", "clock", "writers",
        "last stop", "flushes", "kept damage", "delay levels", "leftovers",
    ]  # fmt: skip


def test_a_directory_that_is_no_store(tmp_path: Path) -> None:
    _is(directory.opens(tmp_path), FAIL, "no RocketMQ store", "commitlog/")
    assert [finding.check for finding in directory.checks(tmp_path / "absent")] == ["store"]


def test_it_is_said_that_contents_are_not_looked_at(root: Path, run: Run) -> None:
    """A store with a damaged message is well, as far as the doctor looks; `rmq verify` finds it."""
    path = root / "commitlog" / f"{0:020d}"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"x", b"y", 1))
    shown = run("doctor", "--no-spark", str(root)).stdout
    assert f"OK    contents           not looked at: rmq verify --store {root} checks every message" in shown
    assert run("verify", store=root).exit_code != 0


def test_entries_that_cannot_be_used_are_named_with_their_table(root: Path) -> None:
    _is(directory.tables(root), OK)
    groups = root / "config" / "subscriptionGroup.json"
    groups.write_text('{"subscriptionGroupTable":{"":{"groupName":""},"g":{}}}')
    _is(directory.tables(root), WARN, "config/subscriptionGroup.json: group '': a group needs a name", "rmq verify")
    _is(directory.opens(root), OK)
    for name, part in (("topics.json", "topicConfigTable"), ("consumerOffset.json", "offsetTable"),
                       ("delayOffset.json", "offsetTable"), ("consumerFilter.json", "filterDataByTopic")):  # fmt: skip
        (root / "config" / name).write_text('{"' + part + '":{"a b":5}}')
    _is(directory.tables(root), WARN, "config/topics.json: topic 'a b': not an object", "rmq verify")
    assert "and 4 more" in directory.tables(root).text
    groups.write_text("[]")
    (root / "config" / "subscriptionGroup.json.bak").unlink(missing_ok=True)
    _is(directory.tables(root), FAIL, "subscriptionGroup.json", "rmq repair")


def test_an_engine_without_its_extension_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_store.format.bytes.native.LOADED", True)
    _is(machine.engine(), OK, "fast")
    monkeypatch.setattr("rmq_store.format.bytes.native.LOADED", False)
    monkeypatch.setenv("RMQ_PURE", "1")
    _is(machine.engine(), WARN, "RMQ_PURE=1", "two to three times", "unset RMQ_PURE")
    monkeypatch.delenv("RMQ_PURE")
    _is(machine.engine(), WARN, "another version", "--force-reinstall")


def test_permissions(root: Path) -> None:
    _is(directory.owner(root), OK)
    other = os.geteuid() + 4711
    _is(directory.owner(root, uid=other), WARN if os.geteuid() == 0 else OK, f"this is user {other}")
    (root / "config").chmod(0o777)
    _is(directory.owner(root), FAIL, "everybody", "chmod -R o-w")
    (root / "config").chmod(0o500)
    _is(directory.owner(root), FAIL, "500", "chmod u+rwx")
    (root / "config").chmod(0o700)
    _is(directory.owner(root), OK)


def test_root_on_the_store_of_somebody_else(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(root / "commitlog", 4711, 4711)
    _is(directory.owner(root), WARN, "files that root makes", "4711")


@pytest.mark.parametrize(
    ("kind", "status"),
    [("nfs4", FAIL), ("cifs", FAIL), ("fuse.sshfs", FAIL), ("overlay", WARN), ("tmpfs", WARN), ("ext4", OK)],
)
def test_file_systems(root: Path, kind: str, status: str) -> None:
    mounts = (
        "22 1 8:1 / / rw,relatime shared:1 - xfs /dev/sda1 rw\n"
        f"23 22 0:5 / {root.resolve().parent} rw - {kind} somewhere rw\n"
        f"24 22 0:6 / {root.resolve().parent}-not rw - nfs elsewhere rw\n"
    )
    _is(directory.file_system(root, mounts), status, kind)


@pytest.mark.parametrize(("of_mount", "of_all"), [("ro,relatime", "rw,size=1k"), ("rw", "ro,errors=remount-ro")])
def test_a_mount_that_is_read_only(root: Path, of_mount: str, of_all: str) -> None:
    mounts = f"22 1 8:1 / / rw shared:1 - xfs /dev/sda1 rw\n23 22 8:2 / {root.resolve()} {of_mount} - ext4 x {of_all}\n"
    _is(directory.file_system(root, mounts), WARN, "read-only", "remount,rw")


def test_a_directory_that_is_a_link_can_be_read_only(root: Path, tmp_path: Path) -> None:
    _is(directory.links(root), OK)
    (root / "commitlog").rename(tmp_path / "elsewhere")
    (root / "commitlog").symlink_to(tmp_path / "elsewhere")
    Store.open(root, read_only=True).close()
    with pytest.raises(NotAStoreError, match="commitlog: expected a directory, found a symbolic link"):
        Store.open(root)
    _is(directory.links(root), WARN, "commitlog is a symbolic link", "not written")


@pytest.mark.parametrize("kind", ["link", "dangling link", "directory", "FIFO"])
def test_a_segment_that_is_no_file_fails_and_sends_to_verify_which_agrees(
    run: Run, root: Path, tmp_path: Path, kind: str
) -> None:
    """It said "links OK none", and "fix: rmq verify", which said clean."""
    segment = next((root / "commitlog").iterdir())
    segment.rename(tmp_path / "outside")
    if kind == "directory":
        segment.mkdir()
    elif kind == "FIFO":
        os.mkfifo(segment)
    else:
        segment.symlink_to(tmp_path / ("outside" if kind == "link" else "nowhere"))
    found = _by_name(directory.checks(root))
    _is(found["store"], FAIL, "expected a regular file", "rmq verify")
    _is(found["links"], FAIL, segment.name, "cannot be opened", "put the file itself there")
    verified = run("verify", store=root)
    assert verified.exit_code == 1
    assert segment.name in verified.stdout


def test_a_disk_that_fills(root: Path) -> None:
    _is(directory.disk(root, lambda path: 75), OK, "75 %")
    _is(directory.disk(root, lambda path: 76), WARN, "diskMaxUsedSpaceRatio=75", "rmq retention")
    _is(directory.disk(root, lambda path: 91), FAIL, "diskSpaceWarningLevelRatio=90", "nothing is written")
    _is(directory.disk(root, lambda path: None), WARN)
    with Store.open(root) as store:
        store.retention.configure(disk_space_warning_level_ratio=100, disk_max_used_space_ratio=95)
    _is(directory.disk(root, lambda path: 94), OK)


def test_a_clock_that_was_set_back(root: Path) -> None:
    now_s = next((root / "commitlog").iterdir()).stat().st_mtime
    _is(directory.clock(root, now_s - 4), OK)
    _is(directory.clock(root, now_s - 3600), FAIL, "3600 s from now", "NTP")
    (root / "pyrmq" / "clock").write_bytes(bytes(8))
    _is(directory.clock(root), WARN, "a store for tests")


def test_who_writes(root: Path) -> None:
    _is(directory.writers(root), OK, "nobody")
    with Store.open(root):
        _is(directory.writers(root), OK, f"process {os.getpid()}")


def test_a_broker_that_runs(root: Path) -> None:
    """DefaultMessageStore#start: a POSIX lock on byte 0 of `lock`."""
    code = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, 2, 1, 0); print(flush=True); input()"
    command = [sys.executable, "-S", "-c", code, str(root / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        _is(directory.writers(root), WARN, f"a RocketMQ broker runs on it (process {process.pid})", "stop the broker")
        process.communicate(b"\n", timeout=60)
    _is(directory.writers(root), OK, "nobody")


def test_an_unclean_stop(root: Path) -> None:
    _is(directory.clean_stop(root), OK)
    (root / "abort").touch()
    _is(directory.clean_stop(root), WARN, "a process of ours", "rmq verify")
    (root / "lock").write_bytes(b"lock")
    _is(directory.clean_stop(root), WARN, "a RocketMQ broker")
    (root / "lock").write_bytes(b"rmq\n")
    with Store.open(root):
        assert (root / "abort").exists()
        _is(directory.clean_stop(root), OK)


def test_a_flush_that_failed(root: Path) -> None:
    with Store.open(root):
        _is(directory.flushes(root), OK)
        page = StatePage(root / "pyrmq" / "state", writable=True)
        page.poison = 1
        _is(directory.flushes(root), FAIL, "writes are refused", "dmesg")
        page.poison = 0


def test_damage_that_was_kept(root: Path) -> None:
    _is(directory.accepted_damage(root), OK)
    AcceptedDamage((BadRange("commitlog/0", 100, 164, 3, "torn"),), {}).save(root / "pyrmq")
    _is(directory.accepted_damage(root), WARN, "1 ranges, 64 bytes", "at byte 100: torn", "rmq verify")
    (root / "pyrmq" / "kept.json").write_text("{")
    _is(directory.accepted_damage(root), FAIL, "rmq repair")


def test_leftovers(root: Path) -> None:
    staging = root / "pyrmq" / "staging" / "write-1"
    staging.mkdir(parents=True)
    (root / "config" / "topics.json.123.tmp").touch()
    now_s = staging.stat().st_mtime
    _is(directory.leftovers(root, now_s + 60), OK)
    _is(directory.leftovers(root, now_s + 90_000), WARN, "2 of killed writes", "staging/")


# ---- the command


def test_the_command_prints_a_fix_below_what_is_not_well_and_ends_with_1(run: Run, root: Path) -> None:
    well = run("doctor", "--no-spark", store=root)
    assert well.exit_code == 0, well.output
    assert f"OK    store              {root}: " in well.stdout
    (root / "config").chmod(0o777)
    result = run("doctor", str(root), "--no-spark", store=None)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    row = next(number for number, line in enumerate(lines) if line.startswith("FAIL  permissions"))
    assert lines[row + 1] == f"{'':25}fix: chmod -R o-w {root}"
    as_json = json.loads(run("doctor", "--no-spark", "--json", store=root).stdout)
    assert {"check", "status", "text", "fix"} == set(as_json[0])
    assert "Example:\n    rmq doctor " in run("doctor", "--help").stdout


def test_it_changes_nothing(run: Run, root: Path) -> None:
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    run("doctor", "--no-spark", store=root)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
