# Every experiment is a target by its name and its aliases; so are points that older documents name.

for name in PROJECT.selection.targets:

    rule:
        name:
            name
        input:
            INPUTS.target(name),
