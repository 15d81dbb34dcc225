"""The messages and enumerations of apache.rocketmq.v2, in a descriptor pool of their own. It needs the extra [grpc]."""
