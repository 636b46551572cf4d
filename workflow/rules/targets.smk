# Every experiment is a target.

for name in PROJECT.selection.targets:

    rule:
        name:
            name
        input:
            INPUTS.target(name),
