"""Test 27: what every released version wrote can be opened, verified and read, for ever. A store of a development
version is refused by name, and read after a repair.

A store of an old version that does not open any more is a bug of this one: never change a fixture (fixtures/make.py).
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rmq_store import Message, NotAStoreError, Store
from rmq_store.broker.repair.repair import carry_out, examine
from rmq_store.verify import verify_store

FIXTURES = Path(__file__).parent / "fixtures"
# Its table of queue ends has no `firsts` and no `log_end`, and its units.json is of format 1.
DEVELOPMENT = "0.1.0"
FOUND = sorted(path.name.removeprefix("store-").removesuffix(".tar.xz") for path in FIXTURES.glob("store-*.tar.xz"))
VERSIONS = [version for version in FOUND if version != DEVELOPMENT]


def _contents(root: Path) -> Any:
    spec = importlib.util.spec_from_file_location("fixtures_make", FIXTURES / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.contents(root)


class Release(NamedTuple):
    """The unpacked fixture of a version, and what it must hold."""

    version: str
    root: Path
    manifest: Any


def _unpacked(version: str, target: Path) -> Release:
    with tarfile.open(FIXTURES / f"store-{version}.tar.xz") as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # absent before 3.11.4
        tar.extractall(target)
    manifest = json.loads((FIXTURES / f"store-{version}.json").read_text(encoding="utf-8"))
    return Release(version, target, manifest)


@pytest.fixture(scope="module", params=VERSIONS)
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Release:
    return _unpacked(request.param, tmp_path_factory.mktemp("release"))


def test_there_is_a_fixture_and_none_is_large() -> None:
    assert {DEVELOPMENT, "0.1.0-2"} <= set(FOUND)
    assert all((FIXTURES / f"store-{version}.tar.xz").stat().st_size < 200_000 for version in FOUND)


@pytest.mark.parametrize("state", ["clean", "unclean"])
def test_every_message_is_read_and_the_store_goes_on(
    release: Release, tmp_path: Path, state: str
) -> None:
    root = tmp_path / "store"
    shutil.copytree(release.root / state, root)
    expected = release.manifest[state]
    assert {"Orders", "%DLQ%cg_orders", "SCHEDULE_TOPIC_XXXX", "rmq_sys_pyrmq_units"} <= expected["topics"].keys()
    assert expected["topics"]["%RETRY%cg_orders"]["0"][:3] == [0, 1, 1]
    assert verify_store(root).status == state
    assert _contents(root) == expected  # as a reader, which changes nothing
    with Store.open(root) as store:  # recovers the one that was killed
        assert store.recovery is not None
        assert store.recovery.removed_bytes == 0
        assert list(store.log_range()) == expected["log"]
        assert store.last_unit("delay", "1") == 1
        before = store.queue_range("Orders", 0).max_offset
        assert store.committed_offsets("cg_orders") == {("Orders", 0): 7, ("Orders", 1): 3}
        results = [store.send(Message("Orders", b"new")) for _ in range(2)]
        assert before in {result.queue_offset for result in results if result.queue_id == 0}
    assert verify_store(root).status == "clean"
    for name in ("consumequeue", "index"):
        shutil.rmtree(root / name)
    with Store.open(root) as store:
        assert store.queue_range("Orders", 0).max_offset == before + 1
    assert verify_store(root).status == "clean"


@pytest.mark.parametrize("state", ["clean", "unclean"])
def test_a_store_of_a_development_version_is_refused_by_name_and_read_after_a_repair(
    tmp_path: Path, state: str
) -> None:
    release = _unpacked(DEVELOPMENT, tmp_path / "release")
    root = release.root / state
    expected = release.manifest[state]
    refused = [problem.text for problem in verify_store(root).problems]
    assert refused
    assert all(text.startswith("written by a development version") for text in refused)
    with pytest.raises(NotAStoreError, match=r"development version .*: write retryAnotherBrokerWhenNotStoreOK"):
        Store.open(root)
    settings = root / "pyrmq" / "store.json"
    settings.write_text(settings.read_text().replace("WhenNotStoreOk", "WhenNotStoreOK"))
    with pytest.raises(NotAStoreError, match=r"written by a development version .*: run `rmq repair"):
        Store.open(root)
    assert carry_out(examine(root)).status == "clean"
    assert _contents(root) == expected
    with Store.open(root) as store:
        assert list(store.log_range()) == expected["log"]
        assert store.last_unit("delay", "1") == 1
        assert store.committed_offsets("cg_orders") == {("Orders", 0): 7, ("Orders", 1): 3}
    assert verify_store(root).status == "clean"
