"""A run of a study: `retrieval.main`, which ends with the study, however that ends.

Its standard input is a pipe from the study.
"""

from retrieval.cli import command_line
from retrieval.main import main
from retrieval.runtime import ending

if __name__ == "__main__":
    ending.end_with_input()
    command_line.run(main, computes=True)
