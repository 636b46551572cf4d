"""`python -m trm fork-server`: run the short jobs of a study as forks of one process. The pipeline starts it."""

import argparse
import logging
import os
import sys
import traceback


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=("training", "analysis"), help="which commands it runs")
    parser.add_argument("socket", help="path of its socket; it ends when its standard input is closed")


def run(args: argparse.Namespace) -> int:
    """Serve; in a child the exit code of its command."""
    from trm.cli import main
    from trm.launch.forkserver import Server

    parent, code = os.getpid(), None
    try:
        server = Server(args.kind, args.socket, main)
    except OSError:  # the folder's name is too long for a socket, or the controller has ended and it is gone
        return 0  # jobs run by themselves
    try:
        code = server.serve()
    except BaseException:
        if os.getpid() == parent:
            raise
        traceback.print_exc()
        code = 1
    if code is None:
        return 0
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the server's own ending is not its child's business
