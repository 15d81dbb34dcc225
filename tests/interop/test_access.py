"""The column about users: a client with the right secret is served, one with a wrong secret is refused.

The server refuses the first request already, the one for the route. Some clients tell their user only that there is no
route, and log the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.interop.clients import Place
from helpers.interop.matrix import GRPC, Cell
from helpers.interop.program import RefusedError
from helpers.interop.refusals import answered, refused
from interop.conftest import start_client
from rmq_store.protocol.errors import ResponseCode
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.grpc_definitions.enums import Code
from rmq_store.server.scratch_store import SCRATCH_CONFIG

USERS = """
[[user]]
access_key = "shop"
secret_key = "secret of the shop"
topics = { "Orders" = "PUB" }
"""


@pytest.mark.column("wrong signature")
def test_a_wrong_secret_is_refused(row: str, own_store: Path, tmp_path: Path, tell: Callable[[Cell], None]) -> None:
    users = tmp_path / "users.toml"
    users.touch(0o600)
    users.write_text(USERS)
    with BrokerServer(own_store, config=SCRATCH_CONFIG, create=True, acl_file=users, grpc_port=0) as server:
        server.store.create_topic("Orders", queue_count=1)
        place = Place(server.address, server.grpc_address or "", ("shop", "secret of the shop"))
        with start_client(row, place, tmp_path) as client:
            client.ask("send", topic="Orders", messages=[{"body": "paid"}])
        with start_client(row, place._replace(keys=("shop", "another secret")), tmp_path) as client:
            with pytest.raises(RefusedError) as error:
                client.ask("send", topic="Orders", messages=[{"body": "forged"}])
            code = answered(error.value, client, "check signature failed")
        assert code == (Code.UNAUTHORIZED if row in GRPC else ResponseCode.NO_PERMISSION)
        assert server.store.queue_ranges("Orders") == {0: (0, 1)}
    tell(refused(code))
