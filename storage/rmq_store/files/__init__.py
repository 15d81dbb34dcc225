"""The only code that touches the operating system: files, maps, locks, durability."""
