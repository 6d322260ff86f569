"""`python -m instar` is the same as `instar`."""

from instar.cli import main

if __name__ == "__main__":
    main()
