"""Measurements that leave their machine: one file each for a pull request, checked again by the recipient, and runs of
several machines in one table.

contribution   a machine's headline as one anonymous file
scrub          text without names, places and addresses
verification   is such a file what a measurement leaves?
merging        journals of several runs as one table
"""
