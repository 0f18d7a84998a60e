"""Codecs: the forms of a block (`registry` finds them), and `frame`, which owns the header of a block at rest."""
