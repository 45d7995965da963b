"""Measurements beside other programs. Nothing here is a test, and nothing in the hub needs it."""
