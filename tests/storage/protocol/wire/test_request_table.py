"""The table of requests: every code once, with the header that has its code."""

from __future__ import annotations

from rmq_store.protocol.bodies import clients, groups, routes, topics
from rmq_store.protocol.bodies.json_body import JsonBody
from rmq_store.protocol.wire import admin_headers, group_headers, headers, name_server_headers, pop_headers
from rmq_store.protocol.wire.header_fields import RequestHeader, ResponseHeader
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.protocol.wire.request_table import REQUESTS, Receiver

# broker-side codes of sections 4.2 and 7.2: every one that clients of 4.9 and 5.5 send to brokers or name servers
ASKED = {
    10, 11, 12, 14, 15, 17, 21, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 103, 104, 105, 106, 200,
    201, 202, 203, 206, 207, 208, 215, 216, 222, 300, 310, 320, 351, 361, 200050, 200051, 200053, 200054, 200151, 400,
}  # fmt: skip


def test_every_code_has_one_row_whose_header_has_that_code() -> None:
    assert set(REQUESTS) == set(RequestCode)
    assert all(row.request_header.code == code for code, row in REQUESTS.items())
    assert set(RequestCode) >= ASKED


def test_every_header_and_every_body_is_used() -> None:
    used = {kind for row in REQUESTS.values() for kind in row if isinstance(kind, type)}
    declared = {
        value
        for module in (headers, group_headers, pop_headers, admin_headers, name_server_headers)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, RequestHeader | ResponseHeader)
    } - {RequestHeader, ResponseHeader}
    assert declared <= used
    bodies = {kind for kind in used if issubclass(kind, JsonBody)}
    for module in (routes, topics, groups, clients):
        assert bodies & {value for value in vars(module).values() if isinstance(value, type)}


def test_requests_of_brokers_to_clients() -> None:
    assert {int(code) for code, row in REQUESTS.items() if row.receiver is Receiver.CLIENT} == {
        39, 40, 220, 221, 307, 309, 326,
    }  # fmt: skip
    assert {int(code) for code, row in REQUESTS.items() if row.oneway} == {37, 39, 40, 220}
