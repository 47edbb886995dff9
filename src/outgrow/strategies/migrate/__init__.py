"""HopGNN: `Migrate`, models that go to the features."""
