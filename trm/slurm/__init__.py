"""What a Slurm cluster needs: the executor over the official plugin, and jobs that requeue themselves."""
