"""What commands find in a store."""
