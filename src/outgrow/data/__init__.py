"""Data files that come with the package: WordNet 3.0 as a graph, under the licence in WORDNET_LICENSE."""
