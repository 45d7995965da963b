"""message-switch: remote calls over named queues, spoken in HTTP.

Read in this order: codec (the wire), operations (what requests do), connection (their order),
session (who is logged in), transfer and wait (reading queues), readme (the old dialect). The
registry makes a `Switch`.
"""

from hubbub.protocols.switch.protocol import Switch

__all__ = ["Switch"]
