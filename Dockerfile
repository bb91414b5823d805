# verfedgnn for a coordinator or a party; docs/deploy.md says how to use it.
#     docker build -t verfedgnn .
FROM python:3.12-slim

# psi is needed for alignment = "ecdh" only, and there for x86_64 only: --build-arg EXTRAS=federation leaves it out.
ARG EXTRAS=federation,psi
# torch without CUDA, a fraction of the size; for GPUs: --build-arg TORCH_INDEX=https://pypi.org/simple
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1

WORKDIR /src
COPY constraints.txt ./
RUN pip install --no-deps --index-url "$TORCH_INDEX" "$(grep '^torch==' constraints.txt)"
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install -c constraints.txt ".[$EXTRAS]" && rm -rf build src

RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin verfedgnn \
    && install -d -o verfedgnn -g verfedgnn -m 0700 /data
USER verfedgnn
WORKDIR /data
STOPSIGNAL SIGTERM
ENTRYPOINT ["verfedgnn"]
CMD ["--help"]
