"""A slave: a replica that is fed and served."""
