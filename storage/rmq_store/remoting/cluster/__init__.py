"""A cluster of RocketMQ brokers in calls: name servers, routes, typed requests, ranges of queues."""
