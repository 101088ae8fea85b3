# The playground as an image, with the starter model in it.
#
#   docker build -t playground .                             CPU
#   docker build -t playground --build-arg TORCH=cu128 .     GPU: the CUDA version that your driver has; run with --gpus all
#   docker run -p 7860:7860 playground
FROM python:3.12-slim

# cpu, or a CUDA version as uv names it: cu126, cu128, cu130 …
ARG TORCH=cpu
# 1 puts the starter model into the image; 0 leaves it to the first start, which then needs the network.
ARG STARTER=1

RUN pip install --no-cache-dir uv && useradd --create-home --uid 1000 user
WORKDIR /home/user/app
COPY requirements.txt .
RUN uv pip install --system --no-cache --torch-backend=${TORCH} -r requirements.txt

USER user
ENV GRADIO_SERVER_NAME=0.0.0.0 GRADIO_SERVER_PORT=7860
COPY --chown=user . .
RUN if [ "${STARTER}" = 1 ]; then python -m playground.models.fetch.starter; fi

EXPOSE 7860
CMD ["python", "app.py"]
