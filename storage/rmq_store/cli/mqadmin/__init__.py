"""RocketMQ's own commands over a directory: mqadmin's names and flags, its columns and labels.

One module per kind; each lists its commands in COMMANDS. Differences that a directory makes: --store (or RMQ_STORE)
says where mqadmin's -n does, --json is added, and an error is one line and an exit code.
"""
