"""Benchmarks: what Instar does, measured from outside. Product code never imports anything from here."""
