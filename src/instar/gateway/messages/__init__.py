"""Anthropic's Messages API: what comes in (`body`), what goes out (`output`), and the routes between (`api`)."""
