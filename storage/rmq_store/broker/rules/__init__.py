"""Pure rules, each from one class of RocketMQ: the queue of a message, its delay, its send-back, and why it failed."""
