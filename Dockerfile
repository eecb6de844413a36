# The program with the versions that are tested, each with its hash, and without root:
#   docker build --tag=retrieval .                                                      trains, on TPUs and on gs://
#   docker build --tag=retrieval-serve --target=serve --build-arg=EXTRAS=serve,gs .     serves, without TensorFlow
# The base is that of September 2026, for every platform. --build-arg=PYTHON=... takes a newer one (docs/guides/launch.md).
ARG PYTHON=python:3.11.16-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
FROM $PYTHON AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ARG EXTRAS=train,serve,gs,tpu
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir pip==26.3 setuptools==84.2.1
WORKDIR /source
COPY . .
RUN /venv/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir=/wheels .
# A wheel with its hash is asked for, so pip wants the hash of everything; constraints have them.
RUN wheel=$(echo /wheels/*.whl) && hash=$(sha256sum "$wheel" | cut -d ' ' -f 1) \
    && /venv/bin/pip install --no-cache-dir -c requirements.lock -c launch/serve.lock -c launch/image.lock \
    "retrieval-jax[$EXTRAS] @ file://$wheel#sha256=$hash"

FROM $PYTHON AS program
ARG PYTHON
LABEL org.opencontainers.image.base.name=$PYTHON
RUN useradd --uid=10001 --create-home app
COPY --from=build /venv /venv
USER 10001
WORKDIR /home/app
# Large buffers stay with the process, as launch/environment.sh says.
ENV PATH=/venv/bin:$PATH GLIBC_TUNABLES=glibc.malloc.hugetlb=1
ENTRYPOINT ["python", "-m", "retrieval.main"]

# /run is a finished run, /keys has a key a line: nothing is served to who has none (docs/guides/launch.md).
FROM program AS serve
EXPOSE 8080
HEALTHCHECK --interval=10s --start-period=180s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/ready', timeout=5)"]
CMD ["--workdir=/run", "--stage=serve", "--config.serve.host=0.0.0.0", "--config.serve.keys_file=/keys"]

FROM program
