# The pipeline in one image, for `docker run` and for Snakemake's `--sdm apptainer` (docs/cluster.md).
#   docker build --tag trm-scaling .
#   docker run --rm --volume "$PWD/results:/study/results" trm-scaling
# another base must have python, pip and apt-get
ARG BASE=python:3.12-slim
FROM ${BASE}
# g++: the CPU kernel and torch.compile build with it
RUN apt-get update && apt-get install --yes --no-install-recommends g++ git \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /study
COPY envs/cpu envs/cpu
# e.g. --build-arg TORCH_OPTIONS="--index-url URL" for another build of torch than pip's own
ARG TORCH_OPTIONS=""
RUN pip install --no-cache-dir ${TORCH_OPTIONS} --requirement envs/cpu/torch.txt \
 && pip install --no-cache-dir --no-deps --require-hashes --requirement envs/cpu/requirements.lock
COPY . .
# jobs run as a user; the mounted results must be writable for the number, or `docker run --user` gives another one
RUN useradd --create-home --uid 1000 study && chown study:study /study
USER study
ENV PYTHONPATH=/study:/study/snakemake-executor-plugin-tpu/src
CMD ["python", "-m", "trm", "study", "run", "--profile", "profiles/local"]
