"""What tests of encoders share."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from rmq_store.format.bytes import native


@pytest.fixture(params=["native", "python"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both ways of the same."""
    if request.param == "native" and not native.LOADED:
        pytest.skip("the extension was not built, or RMQ_PURE=1")
    with patch.object(native, "LOADED", request.param == "native"):
        yield request.param
