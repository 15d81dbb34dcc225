"""Stores of every kind that released RocketMQ brokers write: how they are made, and what the brokers say of them."""
