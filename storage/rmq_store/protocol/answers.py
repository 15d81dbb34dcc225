"""The meaning of a code in an answer, the same for all questions and all who ask.

    2, 215, 42900               busy: BUSY
    2, 14, 215, 1500, 42900     passes by itself: `MQBrokerError.retryable`; as no answer: `is_away`
    16; 1 with AclException     lack of rights: of 5.x, and of 4.9, which looks at rights before anything else
    1 otherwise                 nothing there, if the question is for a thing (33, 38, 315)
    26, 206                     the group is not known, or has no member: GROUP_UNKNOWN
    2, 14, 17 of a slave        it shuts down, lets nobody read (slaveReadEnable=false), or learns of the topic later:
                                NOT_AT_SLAVE
    0, 19, 20, 21 of a pull     it tells the range of the queue: PULL_CODES

Three judgements are made elsewhere: the fate of a send (`client.delivery.outcome`); the repetition of a send by a
producer (`client.producer.producer_config`), as in Java; the repetition of a question while rows are in doubt
(`client.delivery.queue_reading`, as `is_passing` of `gather.waiting`), which waits for a failure of the broker (1) too.
"""

from __future__ import annotations

from typing import Final

from rmq_store.protocol.errors import MQBrokerError, RemotingError, ResponseCode

BUSY: Final = frozenset((ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL, ResponseCode.TOO_MANY_REQUESTS))
GROUP_UNKNOWN: Final = (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.CONSUMER_NOT_ONLINE)
NOT_AT_SLAVE: Final = (
    ResponseCode.SYSTEM_BUSY,
    ResponseCode.SERVICE_NOT_AVAILABLE,
    ResponseCode.TOPIC_NOT_EXIST,
)
PULL_CODES: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


def is_lack_of_rights(code: int, remark: str) -> bool:
    """Whether an answer is a refusal for want of rights."""
    return code == ResponseCode.NO_PERMISSION or (code == ResponseCode.SYSTEM_ERROR and "AclException" in remark)


def is_away(error: Exception) -> bool:
    """Whether a broker has told nothing now and may tell it later. It has refused the connection, lost it, not answered
    in time, or has no address; or it is busy (BUSY), shuts down (14), or closes the connection (1500).

    A broker that is away is neither empty, nor closed, nor deleted. Missing rights, an unknown topic and bytes that do
    not decode are answers.
    """
    return isinstance(error, (RemotingError, MQBrokerError)) and error.retryable


def tells_nothing(error: Exception) -> bool:
    """Whether nobody has answered, or whoever did has just begun, and refuses with code 1: name servers of 5.x, and
    brokers that are asked for their figures (28) in their first seconds.
    """
    if isinstance(error, MQBrokerError) and error.response_code == ResponseCode.SYSTEM_ERROR:
        return not is_lack_of_rights(error.response_code, error.remark)
    return is_away(error)


def is_nothing_there(code: int, remark: str) -> bool:
    """Whether an answer to a question for one thing (33, 38, 315) says that it is not there."""
    return code == ResponseCode.SYSTEM_ERROR and not is_lack_of_rights(code, remark)
