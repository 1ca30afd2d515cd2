# The HTTP service in a container: non-root, fit for a read-only root file system.
#
#   docker compose up --build -d      the settings that belong to it are in docker-compose.yml
#   docs/docker.md                    tokens, more packages for kernels, running it without compose

FROM python:3.13-slim AS build

# Packages that your kernels should have: --build-arg PACKAGES="pandas matplotlib"
ARG PACKAGES=""

WORKDIR /build

# The backend that builds our wheel has an environment of its own: the image needs none of it.
COPY requirements/build.txt requirements/server.txt requirements/
RUN python -m venv /build/tools \
    && /build/tools/bin/pip install --no-cache-dir --require-hashes -r requirements/build.txt \
    # User packages are visible in this one: `%pip install` in a cell writes to the volume.
    && python -m venv --system-site-packages /opt/kernelbox \
    && /opt/kernelbox/bin/pip install --no-cache-dir --require-hashes -r requirements/server.txt

# After the lock, so that a change of ours does not fetch everything again.
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /build/tools/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir dist . \
    && /opt/kernelbox/bin/pip install --no-cache-dir --no-deps --no-index dist/*.whl

# hadolint ignore=SC2086
RUN if [ -n "$PACKAGES" ]; then /opt/kernelbox/bin/pip install --no-cache-dir $PACKAGES; fi


FROM python:3.13-slim

RUN groupadd --gid 10001 kernelbox \
    && useradd --uid 10001 --gid 10001 --home-dir /data --no-create-home --shell /bin/bash kernelbox \
    && site="/data/python/lib/python$(python -c 'import sys; print("%d.%d" % sys.version_info[:2])')/site-packages" \
    # Python looks for the folder of user packages once, when it starts; so it is there from the start.
    && mkdir -p /data/home /data/work "$site" /run/user/10001 \
    && chown -R 10001:10001 /data \
    && chmod 0700 /data \
    # A tmpfs covers it. Some engines give that the mode of what it covers, and root as its owner.
    && chmod 1777 /run/user/10001

COPY --from=build /opt/kernelbox /opt/kernelbox

ENV PATH=/opt/kernelbox/bin:$PATH \
    HOME=/data \
    KERNELBOX_HOME=/data/home \
    PYTHONUSERBASE=/data/python \
    PYTHONUNBUFFERED=1

# Registry, spooled output, what kernels write and install. Kernels themselves end with the container.
VOLUME /data
WORKDIR /data/work
# Numeric, so that an orchestrator can see that it is not root.
USER 10001:10001
EXPOSE 8080

# By hand instead of urllib, which would ask a proxy that the environment names.
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-s", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8080, timeout=4); c.request('GET', '/health'); raise SystemExit(c.getresponse().status != 200)"]

# -s: the service itself imports nothing that a kernel may have put on the volume.
ENTRYPOINT ["python", "-s", "/opt/kernelbox/bin/kernelbox"]
# Beyond loopback the service wants a token: KERNELBOX_API_TOKEN, or it makes one and prints it.
CMD ["serve", "--host", "0.0.0.0", "--port", "8080"]
