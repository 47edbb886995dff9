"""The `split` strategy: each mini-batch is computed by all workers together (GSplit)."""
