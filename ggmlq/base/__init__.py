"""The ground: what every other room may use, and what uses nothing but the standard library and errors.py."""
