# Every experiment is a target by its name and by the ids that older documents know it by.

for name, target in STUDY.targets().items():

    rule:
        name:
            name
        input:
            target,
