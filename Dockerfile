# One image for all services of docker-compose.yml: relay, exit, client, fault proxy, target, users, analysis.
#   docker build -t tunnel .                                   the relay and its clients
#   docker build -t tunnel --build-arg EXTRAS=[analysis,spark,loadtest,metrics] --build-arg JAVA=1 .    with load tests and Spark
FROM python:3.12-slim AS build
ARG EXTRAS="[metrics]"
# The hot path is compiled (docs/DECISIONS.md, 39 and 41). The compiler is only in this stage.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
ENV HATCH_BUILD_HOOKS_ENABLE=true
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY tunnel tunnel
COPY servlet servlet
COPY client client
RUN python -m venv /opt/tunnel && /opt/tunnel/bin/pip install --no-cache-dir ".${EXTRAS}"

FROM python:3.12-slim
ARG JAVA=""
RUN if [ -n "$JAVA" ]; then \
      apt-get update && apt-get install -y --no-install-recommends default-jre-headless && rm -rf /var/lib/apt/lists/*; \
    fi \
    && useradd --uid 10001 --create-home --shell /usr/sbin/nologin tunnel \
    && mkdir /data && chown tunnel:tunnel /data
COPY --from=build /opt/tunnel /opt/tunnel
COPY loadtests /srv/loadtests
ENV PATH=/opt/tunnel/bin:$PATH PYTHONUNBUFFERED=1 PYTHONPATH=/srv
WORKDIR /srv
USER tunnel
VOLUME /data
CMD ["tunnel-relay", "--help"]
