"""The hub as a Python program sees it: `Hub`, its callbacks, the peers it speaks of."""
