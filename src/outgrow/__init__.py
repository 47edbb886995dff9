"""Train graph neural networks on graphs that have outgrown one device, one memory or one machine."""
