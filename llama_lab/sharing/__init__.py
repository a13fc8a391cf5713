"""Measurements that leave the machine they were made on: one file each for a pull request, checked again by whoever
gets it, and runs of several machines in one table.

contribution   a machine's headline as one file that does not say whose machine it is
scrub          text without names, places and addresses
verification   is such a file what a measurement leaves?
merging        journals of several runs as one table
"""
