"""The RO-Crate of a bundle: ``ro-crate-metadata.json``, a Workflow Run Crate.

It says in JSON-LD what other files of the bundle say in their own words: the workflow,
its inputs and outputs, and each launch as an action. Everything in it follows from
these files, so the same bundle gives the same bytes.
"""
