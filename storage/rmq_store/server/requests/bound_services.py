"""The services of one server: the processor and the pool of each request that it answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.wire.request_codes import request_name
from rmq_store.server.requests.dispatcher import BytesProcessor, GroupProcessor, Service
from rmq_store.server.requests.request import Request, refusal
from rmq_store.server.requests.request_table import REQUESTS, Change, Pool
from rmq_store.server.requests.worker_pool import WorkerPool


class Grouped(NamedTuple):
    """How a processor answers several requests by one call, as a `Service` has it."""

    together: GroupProcessor | None = None
    at_once: GroupProcessor | None = None
    of_bytes: BytesProcessor | None = None


def bound_services(
    processors: Mapping[str, Any], pools: Mapping[Pool, WorkerPool], grouped: Mapping[str, Grouped] | None = None
) -> dict[int, Service]:
    """By request code. `processors` are the objects that rows name; what names another one is not served. Requests of
    one processor have one service. `grouped`: for requests that may be grouped, by the processor as a row names it.
    """
    made: dict[tuple[str, Pool, bool], Service] = {}
    services = {}
    for code, row in REQUESTS.items():
        owner, _, method = row.processor.partition(".")
        is_refused = row.rights.change is Change.NEVER
        if row.pool is None or not (is_refused or owner in processors):
            continue
        key = (row.processor, row.pool, row.grouped)
        if key not in made:
            processor = refuse_always if is_refused else getattr(processors[owner], method)
            calls = grouped[row.processor] if grouped is not None and row.grouped else Grouped()
            made[key] = Service(processor, pools[row.pool], *calls)
        services[code] = made[key]
    return services


def refuse_always(request: Request) -> None:
    """Answer to a request that is carried out for nobody: 25, 318 and 1009. MQBrokerError 16."""
    remark = (
        f"{request_name(request.command.code)} is never carried out: settings over the network have led to the "
        "execution of foreign programs and to foreign files (CVE-2023-33246, CVE-2023-37582)"
    )
    raise refusal(ResponseCode.NO_PERMISSION, remark)
