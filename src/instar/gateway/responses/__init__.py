"""OpenAI's Responses API: what comes in (`body`), what goes out (`output`), and the route between (`api`).

`models` is what goes out as the OpenAPI document says it.
"""
