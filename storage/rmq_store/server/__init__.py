"""A store served over RocketMQ's remoting protocol: a broker, a name server, or both at one port.

`transport` has the connections, `requests` decides which processor answers in which thread, `processors` answer for a
store, and `name_server` keeps routes. `broker_server` puts them together.
"""
