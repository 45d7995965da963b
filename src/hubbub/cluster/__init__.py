"""Several hubs as one: what nodes tell one another, and what carries it.

    membership   who is there, what each wants, who is connected where; called by the broker's hooks
    node         another node as a session: what is delivered to it goes there
    retained     whose retained message is the last one
    frames       the bytes between nodes
    engine       what carries frames; `switchboard` within a process, `nats` between machines

Only `switchboard` and `nats` do I/O. A hub without a cluster never loads this package.
"""
