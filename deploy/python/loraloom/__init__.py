"""The package holds a binary: run `loraloom`, or `python -m loraloom`."""
