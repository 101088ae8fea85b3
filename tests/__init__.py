import os
import shutil

if not shutil.which("nvidia-smi"):  # where there is no GPU, Triton's interpreter runs the kernels; read at its import
    os.environ.setdefault("TRITON_INTERPRET", "1")
