"""`rmq mirror`: records between Kafka and a store."""

from __future__ import annotations

import click

from rmq_store.cli.mirror import mirror_letters, mirror_offsets, mirror_retry, mirror_to_kafka, mirror_to_store


@click.group(short_help="Kafka: copy topics to a store and back.")
def mirror() -> None:
    """Copy records of Kafka topics to RocketMQ topics of a store, or back, each once and in order. A mirror has a name,
    and stores its position together with the copies: a restarted mirror continues there. Needs the extra: pip install
    '.[kafka]' in a clone
    """


for _command in (
    mirror_to_store.kafka_to_rmq,
    mirror_to_kafka.rmq_to_kafka,
    mirror_offsets.offsets,
    mirror_letters.dead_letters,
    mirror_letters.redrive,
    mirror_retry.retry,
):
    mirror.add_command(_command)
