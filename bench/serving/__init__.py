"""The parts of `bench.serve`: what serving costs, and what learning costs serving."""
