"""The option `--role` of `rmq broker run`. Its values are those of BrokerRole, without an import of the engine."""

from __future__ import annotations

from typing import Final

import click

ASYNC_MASTER: Final = "ASYNC_MASTER"
SYNC_MASTER: Final = "SYNC_MASTER"
SLAVE: Final = "SLAVE"

role_option = click.option(
    "--role",
    type=click.Choice((ASYNC_MASTER, SYNC_MASTER, SLAVE)),
    default=ASYNC_MASTER,
    show_default=True,
    help="SYNC_MASTER, with --ha-listen: each send waits until a slave has the message. SLAVE: follow --master into "
    "PATH, a replica or an empty directory, and serve reads from there.",
)
