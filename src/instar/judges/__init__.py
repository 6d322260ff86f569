"""Who reads reactions: explicit feedback, the small reward model, rules for tool output.

`build_chain` puts the links together; each link speaks or abstains (see `ports.JudgeLink`).
"""

from instar.judges.build import build_chain
from instar.judges.chain import Chain, to_judgement

__all__ = ["Chain", "build_chain", "to_judgement"]
