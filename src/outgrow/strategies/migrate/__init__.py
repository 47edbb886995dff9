"""The `migrate` strategy: models move to the features (HopGNN)."""
