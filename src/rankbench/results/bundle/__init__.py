"""A bundle: everything that a stranger needs to check a table.

    plan.json requests/ records/ work/   what was measured
    work/code/ images/                  the code, definitions and contents of images
    about.json CITATION.cff             machines, versions, commit; how to cite
    table.* ... plots/                  the results that follow from it
    README.md ro-crate-metadata.json    how to check it, for people and for programs
    SHA256SUMS                          of every other file but signatures
    signatures/                         of SHA256SUMS, each with the key of a person

It is a result directory: one archive, ``results.tar.zst``, or a folder.
"""
