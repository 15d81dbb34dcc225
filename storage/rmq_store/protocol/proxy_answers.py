"""Requests that RocketMQ 5's proxy answers on its remoting port in another way than brokers, and sentences for them.

    route of a topic         its own address for every process of a broker; no ordered queues, no static topics
    unknown code             3: also the lists of brokers (106), topics (206) and groups (201), and what administrators
                             ask
    without a broker's name  15; for a broker that it does not know: no answer
    sends                    13, unless the message is of the topic's message.type; its type for an unknown topic, or
                             one of a broker of 4.x, is UNSPECIFIED
    end of a transaction     answered, and passed on only if its broker has asked for it: see `TransactionActivity`
    POP                      1: it takes the request for a pull; acknowledgements have no answer

Sources: RemotingProtocolServer.java (registerRemotingServer), AbstractRemotingActivity.java, ProxyTopicRouteData.java,
DefaultTopicMessageTypeValidator.java, TransactionActivity.java, PullMessageActivity.java; seen at 5.5.0.
"""

from __future__ import annotations

from typing import Final

from rmq_store.protocol.errors import ResponseCode

SERVES_CLIENTS: Final = (
    "RocketMQ 5's proxy does not: it serves clients, and no commands of administrators, which need the address of a "
    "name server"
)
NO_POP: Final = (
    "RocketMQ 5's proxy serves no POP on its remoting port: use a PushConsumer or a LitePullConsumer, or give the "
    "address of a name server"
)
NO_END: Final = "RocketMQ 5's proxy passes the end of a transaction on only if its broker has asked for it"

_TYPE_DIFFERS: Final = "TopicMessageType validate failed"
_TYPE_IS_UNKNOWN: Final = "the expected type is UNSPECIFIED"


def not_listed(question: str) -> str:
    """Why a name server that is asked so answers REQUEST_CODE_NOT_SUPPORTED."""
    return f"it does not serve {question}. {SERVES_CLIENTS}"


def explained(code: int, remark: str) -> str:
    """The remark of an answer, and what to do if it is one that a proxy gives, and no broker."""
    if code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return f"{remark.strip() or 'refused'}: older brokers do not serve it. {SERVES_CLIENTS}"
    if code != ResponseCode.MESSAGE_ILLEGAL or not remark.startswith(_TYPE_DIFFERS):
        return remark
    if _TYPE_IS_UNKNOWN in remark:
        return (
            f"{remark}: no broker has the topic, or its brokers are of 4.x. RocketMQ 5's proxy makes no topics: let an "
            "administrator make it at the brokers, or set enableTopicMessageTypeCheck=false in rmq-proxy.json"
        )
    return (
        f"{remark}: RocketMQ 5's proxy takes only messages of the topic's type. Send them to a topic that an "
        "administrator has made with -a +message.type=DELAY (FIFO, TRANSACTION), or let the proxy's operator set "
        "enableTopicMessageTypeCheck=false in rmq-proxy.json"
    )
