"""Results: plan and records become statistics, tables and plots."""
