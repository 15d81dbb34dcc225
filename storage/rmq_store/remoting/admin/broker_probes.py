"""Whether a process of a broker that has not answered does so again: probes (28) beside all other work."""

from __future__ import annotations

from concurrent.futures import Future

from rmq_store.protocol.answers import is_away
from rmq_store.protocol.errors import MQBrokerError, RemotingError, ResponseCode
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.name_servers import Probes
from rmq_store.remoting.cluster.routes import MASTER_ID
from rmq_store.remoting.questions.answer import broker_error
from rmq_store.remoting.questions.brokers import ask_runtime_info


def broker_probes(cluster: Cluster, broker_name: str, now_ms: float, broker_id: int = MASTER_ID) -> Probes:
    """Probes of one process, at the address that it has now: it may have moved. A refusal for want of rights is an
    answer; "busy" and "shutting down" are none.
    """

    def send() -> list[Future[RemotingCommand]]:
        try:
            broker = cluster.routes.not_reached(broker_name)
        except (RemotingError, MQBrokerError):  # no name server answers, and the broker is not known
            broker = None
        address = None if broker is None else broker.addresses.get(broker_id)
        if address is None:
            return []
        return [cluster.client.submit(address, ask_runtime_info(), cluster.settings.timeout_ms)]

    return Probes(send, now_ms, _is_there)


def _is_there(answer: RemotingCommand) -> bool:
    return answer.code == ResponseCode.SUCCESS or not is_away(broker_error(answer, ""))
