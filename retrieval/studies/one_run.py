"""A run of a study: `retrieval.main`, which ends with the study, however that ends.

Its standard input is a pipe from the study.
"""

from retrieval import cli
from retrieval.common.runtime import ending
from retrieval.main import main

if __name__ == "__main__":
    ending.end_with_input()
    cli.run(main, computes=lambda: True)
