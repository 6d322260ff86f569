"""Programs that the tests run in a client's own environment. Each prints one JSON object."""
