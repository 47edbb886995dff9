"""Machine profiles, and the calibration that measures them."""
