"""What comes with blockdraft to draft with: files beside an index by the target's checksum."""

from blockdraft.assets.index import Asset, Shipped, asset_folder, find_shipped, read_index

__all__ = ["Asset", "Shipped", "asset_folder", "find_shipped", "read_index"]
