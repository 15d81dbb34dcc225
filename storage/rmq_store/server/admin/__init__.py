"""Requests of mqadmin that change something, or that a client answers (AdminBrokerProcessor.java)."""
