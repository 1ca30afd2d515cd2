"""The warden: outside the walls, one per family; owns all that user code must not touch or lose."""
