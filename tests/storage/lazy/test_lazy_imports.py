"""What a start loads is not looked through for garbage, and the switch is as before."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from rmq_store.lazy.imports import no_collection


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_switch_is_as_before(is_enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        with pytest.raises(ImportError), no_collection():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() == is_enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_the_fixture_is_imported_without_a_collection() -> None:
    script = """import gc, rmq_store.testing
before = sum(one["collections"] for one in gc.get_stats())
rmq_store.testing.RmqTestBroker
assert sum(one["collections"] for one in gc.get_stats()) <= before + 10 and gc.isenabled()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
