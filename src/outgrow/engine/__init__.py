"""What strategies share: whole-graph passes and layer-wise inference (layer 3)."""
