"""The walls around user code: profiles say what a sandbox may do, drivers hold it to that."""
