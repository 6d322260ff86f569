"""`python -m bench.learn`: simulated users who talk, correct and praise; what the model has learned from it, what it
has lost, and what it cost. Read in this order:

    plan.py      what a cell is: arm × wish × seed, on one of two paths
    arms.py      the arms: nothing, the system prompt, published recipes, ours
    cell.py      one cell, the same on both paths: talk, let it learn, ask held-out questions, again
    serving.py   what a path offers; api.py (real server, openai SDK) and fast.py (in this process) do it
    probe.py     measures that need the model: KL, likelihood under base
    cells.py     stored cells: resumable, never run twice for the same code and plan
    figures.py   from cells to pooled figures; goals.py, table.py, plots.py show them
"""
