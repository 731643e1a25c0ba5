"""LLVM IR to machine code of this processor, in memory, with llvmlite."""

from __future__ import annotations

import llvmlite.binding as llvm


class Unsupported(RuntimeError):
    """This processor or installation cannot run compiled functions; the message says why."""


def machine() -> llvm.TargetMachine:
    """A code generator for the host, a new one for each module: the engine that is made with it frees it at its end.

    Unsupported on a processor without fp16 conversion and fused multiply-add.
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    triple = llvm.get_process_triple()
    if triple.startswith("x86_64") and not all(features.get(name) for name in ("avx2", "fma", "f16c")):
        raise Unsupported("the processor lacks AVX2, FMA or F16C")
    if not triple.startswith(("x86_64", "aarch64", "arm64")):
        raise Unsupported(f"no native route for {triple}")
    target = llvm.Target.from_triple(triple)
    # "default" is the small code model, whose 32-bit distances do not reach from code to constants where a GPU's
    # reservations lie between the two: LLVM then ends the process
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=3, codemodel="jitdefault", jit=True
    )


class Code:
    """The functions of one module of LLVM IR; they live as long as this object."""

    def __init__(self, module: str) -> None:
        host = machine()
        parsed = llvm.parse_assembly(module)
        parsed.triple = host.triple
        parsed.data_layout = str(host.target_data)
        parsed.verify()
        passes = llvm.create_pass_builder(host, llvm.create_pipeline_tuning_options(speed_level=2))
        passes.getModulePassManager().run(parsed, passes)
        self._engine = llvm.create_mcjit_compiler(parsed, host)
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Where the function of this name begins."""
        return int(self._engine.get_function_address(name))
