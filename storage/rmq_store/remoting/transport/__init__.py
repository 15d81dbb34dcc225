"""Connections of the remoting protocol: settings, TLS, signatures, and a client that many threads share."""
