"""The keeper: one per home, started by nobody and managed by nobody; names, roots, spares, registry."""
