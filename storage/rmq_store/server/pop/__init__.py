"""POP requests of clients: messages that are hidden from their group, and the requests that wait for some."""
