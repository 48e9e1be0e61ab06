"""Joins the ranks of a launch, and chooses the devices of each rank."""
