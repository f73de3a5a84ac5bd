# rbue serve on a CPU:
#
#     docker build -t rbue-serve .
#     docker run -p 127.0.0.1:8000:8000 -e RBUE_TOKEN=... -v "$PWD/runs:/models:ro" rbue-serve /models/digits/...
#
# On x86 the usual wheel of torch brings several gigabytes of CUDA libraries. --build-arg TORCH_INDEX=... takes torch from
# the index of CPU wheels that its own installation page names.

FROM python:3.12-slim AS build
ARG TORCH_INDEX=""
WORKDIR /build
RUN python -m venv /opt/rbue
COPY constraints.txt ./
RUN /opt/rbue/bin/pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -c constraints.txt torch
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /opt/rbue/bin/pip install --no-cache-dir -c constraints.txt '.[lab,serve]'

FROM python:3.12-slim
# The kernels of the random activations are compiled at the first start. Without a compiler torch's operations do the same
# work, more slowly.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 rbue
COPY --from=build /opt/rbue /opt/rbue
ENV PATH="/opt/rbue/bin:$PATH" PYTHONUNBUFFERED=1
USER rbue
WORKDIR /home/rbue
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["rbue", "serve", "--host", "0.0.0.0"]
