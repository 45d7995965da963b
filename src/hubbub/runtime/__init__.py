"""What drives a hub: the tick, the sockets in and out, their deadlines.

Read in this order: node, binding, listener, dialer. The connections of clients know no asyncio.
"""
