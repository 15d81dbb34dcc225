"""The table of requests: every code once, with the header that has its code, its rights, and its service."""

from __future__ import annotations

from rmq_store.protocol.bodies import clients, groups, routes, topics
from rmq_store.protocol.bodies.json_body import JsonBody
from rmq_store.protocol.wire import admin_headers, group_headers, headers, name_server_headers, pop_headers
from rmq_store.protocol.wire.header_fields import RequestHeader, ResponseHeader
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.name_server.name_server import NameServer
from rmq_store.server.requests.request_table import REQUESTS, Change, Pool, Receiver

# broker-side codes of sections 4.2 and 7.2: every one that clients of 4.9 and 5.5 send to brokers or name servers
ASKED = {
    10, 11, 12, 14, 15, 17, 21, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 103, 104, 105, 106, 200,
    201, 202, 203, 206, 207, 208, 215, 216, 222, 300, 310, 320, 351, 361, 200050, 200051, 200053, 200054, 200151, 400,
}  # fmt: skip

# Two that no server of ours carries out, and the clock of a served store.
BESIDE_ROCKETMQS_LIST = {318, 1009, 0x524D51}
# It takes a broker of several out of routes.
NOT_SERVED = {205}


def test_every_code_has_one_row_whose_header_has_that_code() -> None:
    assert set(REQUESTS) == {*map(int, RequestCode), *BESIDE_ROCKETMQS_LIST}
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


def test_every_request_has_a_service_or_is_known_to_have_none(server: BrokerServer) -> None:
    """A row that names no method of a server shows here; a request to clients has no service."""
    assert server._dispatcher is not None
    with NameServer() as name_server:
        served = {*server._dispatcher._services, *name_server._dispatcher._services}
    to_clients = {code for code, row in REQUESTS.items() if row.receiver is Receiver.CLIENT and not row.processor}
    assert served | NOT_SERVED | to_clients == set(REQUESTS)
    assert served.isdisjoint(NOT_SERVED | to_clients)


def test_a_row_has_a_pool_if_and_only_if_it_is_served() -> None:
    for code, row in REQUESTS.items():
        is_answered = bool(row.processor) or row.rights.change is Change.NEVER
        assert (row.pool is not None) is is_answered, code


def test_requests_wait_in_the_pool_of_their_row(server: BrokerServer) -> None:
    assert server._dispatcher is not None
    for code, service in server._dispatcher._services.items():
        pool = REQUESTS[code].pool
        assert service.pool is not None
        assert pool is not None
        assert service.pool.name == ("client" if pool is Pool.REGISTRATION else pool.value)


def test_only_the_requests_that_may_be_grouped_are_answered_together(server: BrokerServer) -> None:
    assert server._dispatcher is not None
    services = server._dispatcher._services
    assert {code for code, service in services.items() if service.together or service.at_once} == {10, 310, 11, 361}
    assert services[10] is services[310]
    assert services[11] is services[361]


def test_a_name_server_alone_answers_brokers_in_a_pool_of_its_own() -> None:
    with NameServer() as name_server:
        services = name_server._dispatcher._services
    of_brokers = {code for code, service in services.items() if service.pool and service.pool.name == "brokers"}
    assert of_brokers == {103, 104, 322}
    assert set(services) == {25, 100, 101, 102, 103, 104, 105, 106, 206, 219, 224, 304, 318, 319, 322, 1009}
