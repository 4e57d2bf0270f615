# Debian's etcd, for groups that elect their masters (the profile `etcd` of docker-compose.yml). Like the
# other image it is built without a network from compose/wheels, if that is there.

ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE}
COPY compose /src
RUN /src/install-etcd.sh && rm -r /src \
    && useradd --system --uid 10001 --home-dir /data saturnmq \
    && install -d -o saturnmq -g saturnmq -m 700 /data
USER saturnmq
WORKDIR /data
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python3", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:2379/health')"]
ENTRYPOINT ["etcd"]
