"""Who reads reactions: explicit feedback, rules for tool output, the small reward model.

`compose_chain.build_chain` puts the links together; each link speaks or abstains (see `ports.JudgeLink`).
"""
