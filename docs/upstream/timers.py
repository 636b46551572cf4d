"""How many timers Snakemake's scheduler has under way after ten passes with a limit of jobs per second.

python docs/upstream/timers.py     # prints 10; 1 with the patch in this folder
"""

import threading
from types import SimpleNamespace

from snakemake.scheduling.job_scheduler import JobScheduler

scheduler = SimpleNamespace(_open_jobs=threading.Semaphore(0), _reevaluation_due=False)
before = threading.active_count()
for _ in range(10):
    JobScheduler._schedule_reevalutation(scheduler, 0.5)
print(threading.active_count() - before)
