"""The checks of `rmq doctor` over a cluster. They change nothing, and return findings as those of a store."""
