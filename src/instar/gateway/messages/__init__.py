"""Anthropic's Messages API: what comes in (`body`), what goes out (`output`), and the routes between (`api`).

`models` is what goes out as the OpenAPI document says it.
"""
