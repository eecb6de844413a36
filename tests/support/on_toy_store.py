"""`retrieval.main` for work directories under s3://, in a process of its own."""

import sys

from retrieval import cli, main
from retrieval.common.runtime import lease
from support import toy_store

if __name__ == "__main__":
    toy_store.bucket()
    lease._A_MOMENT = lease._VALID = 0
    sys.argv[0] = "retrieval.main"
    cli.run(main.main)
