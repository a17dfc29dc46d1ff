"""RULER-HQA (arXiv 2507.02259, section 4.1) and RULER's needle tasks (arXiv 2404.06654), built from files at any length.

Every task is a function `(index, size) -> Item`: the same index asks the same question at every size, and a document comes in
parts, so that it never has to be in memory whole.
"""
