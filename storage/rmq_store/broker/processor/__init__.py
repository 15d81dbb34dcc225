"""What answers a client's request, as RocketMQ's processors do: in-process clients call it, and a server can."""
