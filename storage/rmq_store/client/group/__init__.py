"""A member of a consumer group: membership, rebalancing, offsets, settings (RebalanceImpl, OffsetStore)."""
