"""HopGNN."""
