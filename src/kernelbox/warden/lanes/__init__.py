"""The two ways into a warden: our own frames, and Jupyter's messages."""
