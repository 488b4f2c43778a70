"""The kinds of logs that can be read, one module each."""
