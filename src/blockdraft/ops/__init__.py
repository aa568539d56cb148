"""Operations that networks are written against: a protocol and its two backends.

Import from the modules: `protocol`, `batch`, `native`, `torch` (needs the torch extra).
"""
