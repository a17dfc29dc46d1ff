"""RULER-HQA (arXiv 2507.02259, section 4.1) and RULER's needle tasks (arXiv 2404.06654), built from files at any length.

Every task is a function `(index, size) -> Item`. The same index asks the same question at every size. Documents are generated in
parts, so that a long one is never in memory as a whole.
"""
