"""RocketMQ's own commands over a directory: mqadmin's names and flags, its columns and labels.

One module per kind; each lists its commands in COMMANDS. Differences that a directory makes: --store (or RMQ_STORE)
says where mqadmin's -n does, --json is added, and an error is one line and an exit code.
"""

from __future__ import annotations

NOT_HERE = (
    "\b\nOf mqadmin's commands these are not here, because a directory has none of it:\n"
    "  name servers (wipeWritePerm, updateKvConfig, updateOrderConf, ...), producers' connections\n"
    "  (producerConnection), the inside of clients (consumerStatus, setConsumeMode, startMonitoring),\n"
    "  other brokers and their controllers (haStatus, getBrokerEpoch, electMaster, updateStaticTopic),\n"
    "  users and rights (createUser, createAcl, ...), cold data control, RocksDB"
)
"""What the help of `rmq` says about the rest."""
