"""The protocols, each in a folder that knows no other: codec, connection, session. No I/O."""
