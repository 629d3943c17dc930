"""The queue: jobs, their SQL, and how workers learn of them.

It knows no spec, provider, space or model of a user: a spec is an opaque name to it.
"""
