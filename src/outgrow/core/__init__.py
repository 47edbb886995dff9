"""Data structures and utilities that all other layers share (layer 0)."""
