"""How a study is watched: the Snakefile's hooks, the console, the lock, forks of one warm process."""
