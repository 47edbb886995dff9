"""From edges to CSC, in memory or into a store."""
