"""Statistics of graphs: counted, sampled, or derived from a degree distribution."""
