"""What differs between devices: one folder for each backend, behind the interface `trm.backends.base.Backend`."""
