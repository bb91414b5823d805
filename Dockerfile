# verfedgnn for a coordinator or a party; docs/deploy.md says how to use it.
#     docker build -t verfedgnn --build-arg VERSION=0.1.0 .
# The tag moves with security updates. To pin what you have checked: --build-arg PYTHON_IMAGE=python:3.12-slim@sha256:...
ARG PYTHON_IMAGE=python:3.12-slim
FROM $PYTHON_IMAGE AS build

# psi is needed for alignment = "ecdh" only, and there for x86_64 only: --build-arg EXTRAS=federation,serve leaves it out.
ARG EXTRAS=federation,psi,serve
# torch without CUDA, a fraction of the size; for GPUs: --build-arg TORCH_INDEX=https://pypi.org/simple
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# The version to call itself, such as 0.1.0: there is no .git in here. Unset: the fallback of pyproject.toml.
ARG VERSION
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

RUN python -m venv /opt/verfedgnn
ENV PATH=/opt/verfedgnn/bin:$PATH
WORKDIR /src
COPY constraints.txt ./
RUN pip install --no-deps --index-url "$TORCH_INDEX" "$(grep '^torch==' constraints.txt)"
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN ${VERSION:+env SETUPTOOLS_SCM_PRETEND_VERSION_FOR_VERFEDGNN="$VERSION"} pip install -c constraints.txt ".[$EXTRAS]"

FROM $PYTHON_IMAGE
COPY --from=build /opt/verfedgnn /opt/verfedgnn
ENV PATH=/opt/verfedgnn/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin verfedgnn \
    && install -d -o verfedgnn -g verfedgnn -m 0700 /data
USER verfedgnn
WORKDIR /data
STOPSIGNAL SIGTERM
ENTRYPOINT ["verfedgnn"]
CMD ["--help"]
