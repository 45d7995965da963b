"""The broker: names, routes, sessions, queues and what of them survives. No I/O, no protocol named.

Read in this order: message, connection, session, topics, route, broker, queue, state, log.
"""
