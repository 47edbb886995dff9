"""Tables of nodes and edges: csv, tsv, parquet and others, read in batches."""
