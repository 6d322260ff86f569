"""Computing updates: losses, the local LoRA trainer, its gate, and the process that they run in.

`process.py` is the parent's side and never imports torch; everything else lives in the compute child.
"""
