"""Processors answer the requests of clients, as RocketMQ's do: in-process clients call them, and a server can."""
