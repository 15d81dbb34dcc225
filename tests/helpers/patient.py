"""Producers for tests that are about something else than time: a busy host may stand still for longer than the 3 s that
a send has by default.
"""

from __future__ import annotations

from typing import Final

from rmq_store.client import ProducerConfig

PATIENT_MS: Final = 60_000

PATIENT: Final = ProducerConfig(send_msg_timeout=PATIENT_MS)
PATIENT_WITHOUT_RETRIES: Final = ProducerConfig(retry_times_when_send_failed=0, send_msg_timeout=PATIENT_MS)
