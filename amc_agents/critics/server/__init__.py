"""Model servers as critics use them: HTTP, response parsing, and the checkpoint handshake."""
