"""Statistics of a graph: of its edges, components, labels and features; counted, or estimated by keyed samples."""
