"""Faces that other packages have, over this one: a program changes an import and nothing else."""
