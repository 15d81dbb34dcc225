"""The gRPC surface of a served store: apache.rocketmq.v2.MessagingService. It needs the extra [grpc]."""
