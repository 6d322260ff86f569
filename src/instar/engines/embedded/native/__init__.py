"""The decode step in C++, with the torch path as its reference. `attach.py` is read first."""
