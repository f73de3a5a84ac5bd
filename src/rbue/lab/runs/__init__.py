"""Run folders: train, evaluate and calibrate networks, and keep what was found."""
