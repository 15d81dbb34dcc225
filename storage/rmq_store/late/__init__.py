"""What takes long to load and is rarely used at a start, in a form that is loaded when it is used."""
