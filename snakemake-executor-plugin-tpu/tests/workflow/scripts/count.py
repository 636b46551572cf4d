"""Counts steps like a training run: writes checkpoints to a bucket, resumes, reports progress, stops on SIGTERM."""

import argparse
import json
import os
import signal
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

URL = os.environ["STORAGE_EMULATOR_HOST"]
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LAUNCH = os.environ["TPU_LAUNCH"]


TOKEN = f"http://{os.environ['GCE_METADATA_HOST']}/computeMetadata/v1/instance/service-accounts/default/token"
headers = {}


def request(url, data=None, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=20) as answer:
        return answer.read()


def call(url, data=None):
    """Call the bucket, as long as it takes."""
    while True:
        try:
            if not headers:
                token = json.loads(request(TOKEN, **{"Metadata-Flavor": "Google"}))
                headers["Authorization"] = f"Bearer {token['access_token']}"
            return request(url, data, **headers)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            headers.clear()
        except OSError:
            pass
        if stopping:
            sys.exit(143)
        time.sleep(0.2)


def place(path):
    bucket, _, name = path.partition("/")
    return bucket, urllib.parse.quote(name, safe="")


def put(path, text):
    bucket, name = place(path)
    call(f"{URL}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}", str(text).encode())


def get(path):
    bucket, name = place(path)
    return call(f"{URL}/storage/v1/b/{bucket}/o/{name}?alt=media")


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--seconds", type=float)
for name in ("checkpoint", "seed", "out"):
    parser.add_argument(f"--{name}")
parser.add_argument("--hold", type=int, help="in launch 1, wait at this step for the object `release`")
parser.add_argument("--stubborn", action="store_true")
args = parser.parse_args()

stopping = False


def stop(*_):
    global stopping
    stopping = True


signal.signal(signal.SIGTERM, signal.SIG_IGN if args.stubborn else stop)
# All ranks start where rank 0 does, as with a collective.
begin = f"{args.checkpoint}/begin-{LAUNCH}"
if RANK == 0:
    step = int(get(f"{args.checkpoint}/step") or 0)
    put(begin, step)
else:
    while (found := get(begin)) is None and not stopping:
        time.sleep(0.05)
    step = int(found or 0)
variables = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "COUNT_OPTION")
seen = {key: value for key, value in os.environ.items() if key.startswith("TPU_") or key in variables}
put(f"{args.checkpoint}/launches/{LAUNCH}-{RANK}", json.dumps({"from": step, "environment": seen}))
print(f"launch {LAUNCH}, rank {RANK} of {SIZE}: from step {step}", flush=True)
if RANK == 0:
    put(f"{args.checkpoint}/owner", LAUNCH)
while step < args.steps:
    time.sleep(args.seconds)
    step += 1
    if RANK == 0:
        # No fault may cause two launches of one job at the same time.
        if (owner := get(f"{args.checkpoint}/owner").decode()) != LAUNCH:
            put(f"{args.checkpoint}/duplicates/{LAUNCH}", owner)
            sys.exit("another launch runs beside this one")
        put(f"{args.checkpoint}/step", step)
        with open(os.environ["TPU_PROGRESS_FILE"], "w") as file:
            file.write(str(step))
    print(f"step {step}", flush=True)
    while args.hold == step and LAUNCH == "1" and not stopping and get(f"{args.checkpoint}/release") is None:
        time.sleep(0.05)
    if stopping:
        sys.exit(143)
if RANK == 0:
    job = args.checkpoint.rpartition("/")[2]
    with open(args.seed) as file, open(args.out, "w") as out:
        out.write(f"{job} counted to {step} with seed {file.read().strip()} on {SIZE}\n")
