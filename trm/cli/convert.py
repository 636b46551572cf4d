"""`python -m trm convert`: exchange weights with the public implementation, or write a model for other programs.

python -m trm convert from-reference STEP_FILE --config RUNCONFIG --out results/runs/NAME
python -m trm convert to-reference results/runs/NAME --out model.pt [--weights ema|raw]
python -m trm convert to-model results/runs/NAME --out models/NAME
python -m trm convert to-onnx results/runs/NAME --out model.onnx
python -m trm convert to-huggingface results/runs/NAME --out FOLDER
"""

import argparse

EXPORTS = {
    "to-model": (
        "write a small model and its card, for `trm solve`",
        "folder of weights.safetensors and README.md",
    ),
    "to-onnx": ("write one supervision step with its weights as ONNX", "file to write"),
    "to-huggingface": (
        "write a repository for the Hugging Face hub",
        "folder of model.safetensors, config.json and README.md",
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    ways = parser.add_subparsers(dest="way", required=True)
    read = ways.add_parser("from-reference", help="read a public state dict")
    read.add_argument("file", help="state dict (torch or .safetensors)")
    read.add_argument("--config", required=True, help="RunConfig that describes it: JSON text or a path")
    read.add_argument(
        "--weights", default="", choices=("ema", "raw"), help="which weights, of a file that keeps both"
    )
    read.add_argument("--out", required=True, help="run folder to write weights.safetensors into")
    write = ways.add_parser("to-reference", help="write a public state dict")
    write.add_argument("run_folder", help="folder of a finished run")
    write.add_argument("--out", required=True, help="file to write with torch.save")
    write.add_argument(
        "--weights", default="ema", choices=("ema", "raw"), help="which weights (default: ema)"
    )
    for way, (text, where) in EXPORTS.items():
        export = ways.add_parser(way, help=text)
        export.add_argument("run_folder", help="folder of a finished run, or of a model in models/")
        export.add_argument("--out", required=True, help=where)


def run(args: argparse.Namespace) -> int:
    import io
    from pathlib import Path

    from trm.cli.configuration import run_config

    out = Path(args.out)
    if args.way == "from-reference":
        config = run_config(args.config, [])

        from trm.study.records import WEIGHTS
        from trm.training.interchange import from_reference, read_state, with_settings
        from trm.training.outputs import save_weights

        state = read_state(Path(args.file), args.weights)
        config, origin = with_settings(Path(args.file), config)
        tensors, meta = from_reference(state, config, out.name)
        save_weights(out / WEIGHTS, tensors, config, meta)
        print(f"{out / WEIGHTS}: {len(tensors)} tensors; {origin}")
        return 0

    if args.way in EXPORTS:
        from trm.training.card import write_model
        from trm.training.export import write_huggingface, write_onnx

        writers = {"to-model": write_model, "to-onnx": write_onnx, "to-huggingface": write_huggingface}
        print(f"{out}: {writers[args.way](Path(args.run_folder), out) / 1e6:.2f} MB")
        return 0

    import torch

    from trm.io import write_bytes
    from trm.training.interchange import to_reference
    from trm.training.outputs import load_weights

    buffer = io.BytesIO()
    state = to_reference(load_weights(Path(args.run_folder)), args.weights)
    torch.save(state, buffer)
    write_bytes(out, buffer.getvalue())
    print(f"{out}: {len(state)} tensors")
    return 0
