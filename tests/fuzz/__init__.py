"""Random and hostile bytes for everything that decodes."""
