"""Profiles and calibration."""
