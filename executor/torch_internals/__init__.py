"""The private corners of torch that the executor relies on, each behind one function and guarded.

Nothing else in the executor touches a name of torch that begins with an underscore.
"""
