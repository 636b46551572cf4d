# Every experiment is a target.

for name in study.selection.targets:

    rule:
        name:
            name
        input:
            lambda wildcards, name=name: study.target(name),
