"""GSplit: `SplitParallel`, one mini-batch split over workers."""
