"""Commands over a cluster that watch it: `rmq doctor` and `rmq metrics`."""
