"""`python -m rayorch` is the `rayorch` command, for a Python whose scripts are not on the path."""

from rayorch.cli.entry import main

if __name__ == "__main__":
    main()
