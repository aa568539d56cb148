"""Model files: the GGUF reader, tensor names of each architecture, packed weights."""
