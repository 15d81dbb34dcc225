"""`rmq resend`: the relay of the outbox, and decisions of people about messages that it gave up."""

from __future__ import annotations

import click

from rmq_store.cli.outbox import resend_change, resend_list, resend_run, resend_schema


@click.group(short_help="Outbox: send and resend its messages; the manual list.")
def resend() -> None:
    """The outbox of a database: send messages that no broker has, send messages again that no consumer confirms, and
    manage the manual list. Needs the extra: pip install '.[reliable]' in a clone
    """


for _command in (
    resend_run.run,
    resend_list.list_,
    resend_list.show,
    resend_change.void,
    resend_change.retry,
    resend_change.clear,
    resend_schema.schema,
):
    resend.add_command(_command)
