"""Pure rules, each from one class of RocketMQ: where a message goes, what is stored instead of it, why it failed."""
