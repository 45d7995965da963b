"""How large a cluster can become: what is measured of a few nodes, and what that means for many."""
