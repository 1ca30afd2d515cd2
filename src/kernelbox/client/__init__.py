"""What a Box asks of its keeper and of wardens, sans I/O, and the two thin drivers that ask it."""
