"""Jupyter's own dialect: its REST routes, and its channels over a WebSocket."""
