"""Attention over keys and values in blocks; TODO"""
