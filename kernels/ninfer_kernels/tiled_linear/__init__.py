"""Stored matrices on a GPU: packed bytes laid out in tiles, and the products that read them."""

from . import reference
from .packing import pack
from .routes import TiledLinear, linear
from .tiles import FORMATS, TileFormat, Tiles

__all__ = ["FORMATS", "TileFormat", "TiledLinear", "Tiles", "linear", "pack", "reference"]
