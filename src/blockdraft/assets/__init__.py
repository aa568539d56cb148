"""Drafters that come with blockdraft: GGUF files beside an index by the target's checksum."""

from blockdraft.assets.index import ShippedDrafter, asset_folder, find_shipped, read_index

__all__ = ["ShippedDrafter", "asset_folder", "find_shipped", "read_index"]
