"""A run of a study: `retrieval.main`, which ends with the study, however that ends.

Its standard input is a pipe from the study.
"""

from retrieval import command_line, hosts
from retrieval.main import main

if __name__ == "__main__":
    hosts.end_with_input()
    command_line.run(main)
