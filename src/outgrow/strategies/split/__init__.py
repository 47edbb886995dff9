"""One mini-batch, split over workers: what each draws of it, sends of it and computes of it."""
