"""The security table: hostile names, files and lengths; what must not be in the code."""
