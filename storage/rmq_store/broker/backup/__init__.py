"""A consistent copy of a store, while others write it or at rest."""
