"""One conversation with a keeper or a warden, sans I/O, and its two thin drivers."""
