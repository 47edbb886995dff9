"""Feature stores: how batches and shards get the features of their nodes."""
