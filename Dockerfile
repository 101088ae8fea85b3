# The playground as an image, with the starter model in it. docs/deploy.md says how to run it.
#
#   docker build -t playground .                             CPU
#   docker build -t playground --build-arg TORCH=cu128 .     GPU: the CUDA version that your driver has
FROM python:3.12-slim

# cpu, or a CUDA version as uv names it (cu126, cu128, cu130 …), from PyTorch's index; empty for the torch of PyPI.
ARG TORCH=cpu
# 1 puts the starter model into the image; 0 leaves it to the first start, which then needs the network.
ARG STARTER=1

# A Space runs its image as user 1000. A volume that is mounted on the cache belongs to its user, as the folder does.
RUN pip install --no-cache-dir uv==0.13.9 \
    && useradd --create-home --uid 1000 user \
    && install --directory --owner=user --group=user /home/user/app /home/user/.cache
WORKDIR /home/user/app
# torch has other hashes on each index; all else is what requirements.lock says.
COPY requirements.lock .
RUN uv pip install --system --no-cache ${TORCH:+--torch-backend=${TORCH}} torch==2.13.0 \
    && uv pip install --system --no-cache --no-deps --require-hashes -r requirements.lock

USER user
ENV GRADIO_SERVER_NAME=0.0.0.0 GRADIO_SERVER_PORT=7860
COPY --chown=user . .
RUN if [ "${STARTER}" = 1 ]; then python -m playground.models.fetch.starter; fi

EXPOSE 7860
CMD ["python", "app.py"]
