"""What a `ClusterReader` asks the brokers, one module for each kind of answer."""
