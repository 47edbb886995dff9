"""Rows outside device memory."""
