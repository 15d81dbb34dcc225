"""The remoting protocol without I/O: frames, headers, request codes, typed headers and bodies, signatures.

Clients and servers use the same code. Nothing here opens a socket or reads a clock. Source: the package
org.apache.rocketmq.remoting.protocol.
"""
