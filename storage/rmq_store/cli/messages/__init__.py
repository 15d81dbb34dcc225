"""Commands about messages: read, tail, send, consume, trace, delayed."""
