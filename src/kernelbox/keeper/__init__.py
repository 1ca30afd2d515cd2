"""The keeper: one per home, managed by nobody; it keeps names, roots, spares and the registry."""
