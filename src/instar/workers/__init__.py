"""The long-running loops and the supervisor that keeps them running."""
