"""The ground of the package: helpers that every room may use, on the standard library and errors.py alone."""
