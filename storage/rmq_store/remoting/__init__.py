"""The network: sockets to brokers and name servers, and what a cluster of them is."""
