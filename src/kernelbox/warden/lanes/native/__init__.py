"""Our own lane: frames on a Unix socket, one connection per conversation."""
