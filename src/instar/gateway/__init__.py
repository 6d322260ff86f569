"""The HTTP surface. Knows clients; knows neither torch nor SQL."""
