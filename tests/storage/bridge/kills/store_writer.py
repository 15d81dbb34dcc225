"""Writes to a topic of a store until it is killed: python store_writer.py STORE TOPIC QUEUES SEED.

Bodies differ, and say their queue and number. Tags, keys, sharding keys and properties come and go.
"""

from __future__ import annotations

import itertools
import random
import sys
import time

from rmq_store import Message, Store

PAUSE_S = 0.1
BATCH_ROWS = 200


def main(root: str, topic: str, queues: str, seed: str) -> None:
    chance = random.Random(int(seed))
    numbers = itertools.count()
    with Store.open(root) as store:
        while True:
            messages = [one(topic, chance.randrange(int(queues)), next(numbers), chance) for _ in range(BATCH_ROWS)]
            store.send_all(messages)
            time.sleep(PAUSE_S)


def one(topic: str, queue_id: int, number: int, chance: random.Random) -> Message:
    return Message(
        topic,
        f"value {queue_id} {number} ".encode() * chance.choice((1, 1, 40)),
        tags=chance.choice((None, "A")),
        keys=chance.choice((None, f"k{number % 97}")),
        sharding_key=chance.choice((None, None, "s")),
        properties={"n": str(number)} if chance.random() < 0.7 else {},
        queue_id=queue_id,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
