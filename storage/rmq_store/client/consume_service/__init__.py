"""Delivery of messages to a listener, and the effect of its answer (ConsumeMessageConcurrentlyService and its
siblings).
"""
