"""The Kafka bridge: records copied between Kafka topics and RocketMQ topics, with group positions and dead letters.

The guide is docs/kafka.md; positions, identities and crash points are in docs/kafka-design.md. Needs the extra
`[kafka]`.
"""
