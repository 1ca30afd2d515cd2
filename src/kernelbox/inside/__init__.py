"""What runs behind the walls: the root, its stubs, and the interpreters that run user code."""
