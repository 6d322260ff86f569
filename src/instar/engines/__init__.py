"""Where tokens come from: one client for every engine, the embedded engine, a scripted one, models."""
