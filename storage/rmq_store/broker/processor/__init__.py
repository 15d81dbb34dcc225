"""Processors answer the requests of clients, as RocketMQ's do. In-process clients call them; a server could, too."""
