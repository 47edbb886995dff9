"""NeutronTP: `TensorParallel`, columns of features split over workers instead of nodes."""
