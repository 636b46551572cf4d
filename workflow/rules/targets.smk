# Every experiment is a target by its name and by its aliases.

for name in PROJECT.selection.targets:

    rule:
        name:
            name
        input:
            INPUTS.target(name),
